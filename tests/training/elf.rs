//! As much of ELF files as the tests read: NVIDIA's libraries and the binaries of its compiler, both of 64 bits, little-endian.

use std::collections::BTreeMap;

/// A part of a file.
pub struct Section<'a> {
    pub name: &'a str,
    kind: u32,
    link: usize,
    /// Its bytes in the file; none where it has only a size.
    pub bytes: &'a [u8],
    pub size: usize,
}

/// A file.
pub struct Elf<'a> {
    pub sections: Vec<Section<'a>>,
}

/// The number of so many bytes, the lowest first, at a place.
pub fn number(bytes: &[u8], at: usize, width: usize) -> usize {
    bytes[at..at + width].iter().rev().fold(0, |number, byte| number << 8 | usize::from(*byte))
}

/// The text that ends with a zero at a place.
fn text(bytes: &[u8], at: usize) -> &str {
    let bytes = bytes[at..].split(|byte| *byte == 0).next().unwrap();
    std::str::from_utf8(bytes).unwrap()
}

/// A section's kind that has no bytes in the file.
const NOBITS: u32 = 8;

impl<'a> Elf<'a> {
    /// The file of these bytes.
    ///
    /// # Panics
    /// They are none.
    pub fn of(file: &'a [u8]) -> Elf<'a> {
        assert!(file.starts_with(b"\x7fELF\x02\x01"), "expected an ELF file");
        let (table, width, count) = (number(file, 40, 8), number(file, 58, 2), number(file, 60, 2));
        let head = |index: usize| &file[table + index * width..][..width];
        let names = number(head(number(file, 62, 2)), 24, 8);
        let section = |index: usize| {
            let head = head(index);
            let (kind, place, size) = (number(head, 4, 4) as u32, number(head, 24, 8), number(head, 32, 8));
            let bytes: &[u8] = if kind == NOBITS { &[] } else { &file[place..place + size] };
            Section { name: text(file, names + number(head, 0, 4)), kind, link: number(head, 40, 4), bytes, size }
        };
        Elf { sections: (0..count).map(section).collect() }
    }

    /// A section by its name.
    pub fn section(&self, name: &str) -> Option<&Section<'a>> {
        self.sections.iter().find(|section| section.name == name)
    }

    /// Names of a table of symbols by their numbers: kind 2 is all, kind 11 what a library offers and asks for. With each, whether
    /// it is defined here.
    pub fn symbols(&self, kind: u32) -> BTreeMap<usize, (&'a str, bool)> {
        let Some(table) = self.sections.iter().find(|section| section.kind == kind) else { return BTreeMap::new() };
        let names = self.sections[table.link].bytes;
        let of = |symbol: &'a [u8]| (text(names, number(symbol, 0, 4)), number(symbol, 6, 2) != 0);
        table.bytes.chunks_exact(24).map(of).enumerate().collect()
    }
}
