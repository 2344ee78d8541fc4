//! Lines of a log, of bounded length.

use std::io::{BufRead, ErrorKind, Result};

/// Longest line that is read, in bytes; the rest of a longer one is skipped.
const LONGEST: usize = 1 << 16;

/// Lines of a log. A carriage return ends a line, too, as progress bars use it.
pub(super) struct Lines<'a> {
    reader: &'a mut dyn BufRead,
    ended: usize,
    number: usize,
    line: Vec<u8>,
}

impl<'a> Lines<'a> {
    pub(super) fn new(reader: &'a mut dyn BufRead) -> Lines<'a> {
        Lines { reader, ended: 0, number: 0, line: Vec::new() }
    }

    /// The number of the last line, from 1.
    pub(super) fn number(&self) -> usize {
        self.number
    }

    /// Returns the next line that is not empty, without colours. Of a line that was cut off, the last word is missing: it may be half
    /// of a number.
    pub(super) fn next(&mut self) -> Result<Option<String>> {
        loop {
            self.line.clear();
            self.number = self.ended + 1;
            let (mut ended, mut cut, mut any) = (false, false, false);
            while !ended {
                let bytes = match self.reader.fill_buf() {
                    Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                    bytes => bytes?,
                };
                if bytes.is_empty() {
                    break;
                }
                any = true;
                let end = bytes.iter().position(|byte| matches!(byte, b'\n' | b'\r'));
                let part = &bytes[..end.unwrap_or(bytes.len())];
                let kept = part.len().min(LONGEST - self.line.len());
                cut |= kept < part.len();
                self.line.extend_from_slice(&part[..kept]);
                ended = end.is_some();
                self.ended += usize::from(end.is_some_and(|end| bytes[end] == b'\n'));
                let used = part.len() + usize::from(ended);
                self.reader.consume(used);
            }
            if !any {
                return Ok(None);
            }
            let mut line = clean(&String::from_utf8_lossy(&self.line));
            if cut || !ended {
                line.truncate(line.rfind(char::is_whitespace).unwrap_or(0));
            }
            if !line.trim().is_empty() {
                return Ok(Some(line));
            }
        }
    }
}

/// Returns a line without colours and control characters.
pub(super) fn clean(line: &str) -> String {
    if !line.contains(char::is_control) {
        return line.to_string();
    }
    let mut text = String::with_capacity(line.len());
    let mut rest = line.chars().peekable();
    while let Some(c) = rest.next() {
        if c == '\u{1b}' {
            if rest.next_if_eq(&'[').is_some() {
                while rest.next_if(|c| matches!(c, '0'..='?')).is_some() {}
                rest.next_if(|c| matches!(c, '@'..='~'));
            }
        } else if c == '\t' || !c.is_control() {
            text.push(c);
        }
    }
    text
}
