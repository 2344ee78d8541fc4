//! How many colours a terminal has, by the system's own description of it (term(5)).

use std::path::PathBuf;

/// Which of a description's numbers says how many colours there are.
const MAX_COLORS: usize = 13;
/// The first two bytes of a description with numbers of 16 bits, and of one with numbers of 32.
const MAGIC: [(u16, usize); 2] = [(0o432, 2), (0o1036, 4)];
/// Largest description that is read.
const LARGEST: u64 = 64 << 10;

/// The colours of the terminal called `term`, where it is described; 0 where it has none.
pub fn colors(set: impl Fn(&str) -> Option<String>, term: &str) -> Option<u32> {
    let first = term.chars().next().filter(|_| !term.contains(['/', '\0']) && term != "." && term != "..")?;
    let own = [set("TERMINFO"), set("HOME").map(|home| format!("{home}/.terminfo"))];
    let dirs = set("TERMINFO_DIRS").unwrap_or_default();
    let folders = own.into_iter().flatten().chain(dirs.split(':').map(str::to_string));
    let systems = ["/etc/terminfo", "/lib/terminfo", "/usr/share/terminfo", "/usr/lib/terminfo"].map(str::to_string);
    let folders = folders.filter(|folder| !folder.is_empty()).chain(systems);
    let places = |folder: String| {
        [first.to_string(), format!("{:x}", u32::from(first))]
            .map(|letter| PathBuf::from(&folder).join(letter).join(term))
    };
    let small = |path: &PathBuf| path.metadata().is_ok_and(|file| file.is_file() && file.len() <= LARGEST);
    let bytes = folders.flat_map(places).find(small).and_then(|path| std::fs::read(path).ok())?;
    described(&bytes)
}

/// The colours in a compiled description; none where it is no such thing.
fn described(bytes: &[u8]) -> Option<u32> {
    let short = |at: usize| Some(u16::from_le_bytes(bytes.get(at..at + 2)?.try_into().ok()?));
    let magic = short(0)?;
    let width = MAGIC.iter().find(|(known, _)| *known == magic)?.1;
    let [names, flags, numbers] = [short(2)?, short(4)?, short(6)?].map(usize::from);
    if numbers <= MAX_COLORS {
        return Some(0);
    }
    // numbers begin at an even byte
    let at = (12 + names + flags).next_multiple_of(2) + MAX_COLORS * width;
    let number = bytes.get(at..at + width)?;
    let value = match width {
        2 => i32::from(i16::from_le_bytes(number.try_into().ok()?)),
        _ => i32::from_le_bytes(number.try_into().ok()?),
    };
    Some(u32::try_from(value).unwrap_or(0)) // below 0: it has none
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A description as term(5) has it: a name, two flags, so many numbers.
    fn description(numbers: &[i32], wide: bool) -> Vec<u8> {
        let (name, flags) = (b"odd|a terminal\0", [1, 0]);
        let magic = if wide { 0o1036u16 } else { 0o432 };
        let header = [magic, name.len() as u16, flags.len() as u16, numbers.len() as u16, 0, 0];
        let mut bytes: Vec<u8> = header.iter().flat_map(|word| word.to_le_bytes()).collect();
        bytes.extend(name);
        bytes.extend(flags);
        if bytes.len() % 2 == 1 {
            bytes.push(0);
        }
        let number = |n: &i32| if wide { n.to_le_bytes().to_vec() } else { (*n as i16).to_le_bytes().to_vec() };
        bytes.extend(numbers.iter().flat_map(number));
        bytes
    }

    #[test]
    fn descriptions_say_how_many_colours_there_are() {
        let with = |colors: i32| [vec![-1; 13], vec![colors]].concat();
        for (colors, wide, wanted) in [(8, false, 8), (256, false, 256), (0x100_0000, true, 0x100_0000), (-1, false, 0)]
        {
            assert_eq!(described(&description(&with(colors), wide)), Some(wanted));
        }
        assert_eq!(described(&description(&[80, 8], false)), Some(0));
        for cut in [0, 1, 5, 12, 20, 40] {
            assert_eq!(described(&description(&with(8), false)[..cut]), None, "{cut}");
        }
        assert_eq!(described(b"#!/bin/sh and so on"), None);
        assert_eq!([colors(|_| None, "../../etc/passwd"), colors(|_| None, ""), colors(|_| None, "..")], [None; 3]);
    }
}
