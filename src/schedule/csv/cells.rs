//! The cells of a comma-separated file, and the actions in them.

use crate::op::{Kind, Op};
use crate::sharding::{Collective, CollectiveKind};
use std::borrow::Cow;

/// What a cell tells a device to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    /// Computes an op.
    Op(Kind),
    /// `BW`: the full backward in files of PyTorch before December 2024.
    WholeBackward,
    /// Sends an output, or a gradient (`true`).
    Send(bool),
    /// Receives an input, or a gradient (`true`).
    Receive(bool),
    /// Waits until the buffer of a sent output, or gradient (`true`), is free.
    WaitSend(bool),
    /// Gathers or frees parameters, or reduces gradients.
    Collective(CollectiveKind),
}

/// One cell of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Action {
    /// Global stage number.
    pub stage: u32,
    /// Micro-batch; 0 if the action has none.
    pub microbatch: u32,
    /// Number of its cell in the row, from 1.
    pub cell: u32,
    /// What it tells the device to do.
    pub what: What,
    /// Whether it is the first op of an overlapped pair.
    pub opens_pair: bool,
}

impl Action {
    /// Returns the cell's text, as PyTorch writes it.
    pub fn text(self) -> String {
        let Action { stage, microbatch, what, .. } = self;
        let name = NAMES.into_iter().find(|(_, named)| *named == what).map(|(name, _)| name);
        match what {
            What::Op(kind) => format!("{stage}{}{microbatch}", kind.letter()),
            What::Collective(kind) => Collective { kind, stage }.to_string(),
            _ => format!("{stage}{}{microbatch}", name.unwrap_or_default()),
        }
    }
}

/// What a cell writes between stage and micro-batch, except the letter of an op.
const NAMES: [(&str, What); 7] = [
    ("BW", What::WholeBackward),
    ("SEND_F", What::Send(false)),
    ("SEND_B", What::Send(true)),
    ("RECV_F", What::Receive(false)),
    ("RECV_B", What::Receive(true)),
    ("WAIT_SEND_F", What::WaitSend(false)),
    ("WAIT_SEND_B", What::WaitSend(true)),
];

/// Returns what the name of a cell means.
fn named(name: &str) -> Option<What> {
    let kind = name.chars().next().and_then(Kind::from_letter).filter(|kind| name.len() == 1 && kind.is_costed());
    let known = NAMES.into_iter().find(|(known, _)| *known == name).map(|(_, what)| what);
    let collective = || CollectiveKind::ALL.into_iter().find(|kind| kind.name() == name).map(What::Collective);
    known.or(kind.map(What::Op)).or_else(collective)
}

/// Iterates over the cells of a text as Python's `csv` module splits them, but skips blanks before a quote.
pub struct Cells<'a> {
    text: &'a str,
    at: usize,
    /// Row of the next cell, from 0.
    row: usize,
    /// Number of cells of that row returned so far.
    column: usize,
}

/// One cell: row from 0, column from 1, text without quotes (`None` if a quote is not closed).
pub struct Cell<'a> {
    pub row: usize,
    pub column: usize,
    pub text: Option<Cow<'a, str>>,
}

impl<'a> Cells<'a> {
    /// Creates the iterator; skips a byte-order mark.
    pub fn new(text: &'a str) -> Cells<'a> {
        Cells { text: text.strip_prefix('\u{feff}').unwrap_or(text), at: 0, row: 0, column: 0 }
    }

    /// Returns the next cell's text, up to its separator.
    fn take(&mut self) -> Option<Cow<'a, str>> {
        let blanks = self.text[self.at..].bytes().take_while(|b| matches!(b, b' ' | b'\t')).count();
        if self.text.as_bytes().get(self.at + blanks) != Some(&b'"') {
            return Some(Cow::Borrowed(self.plain()));
        }
        self.at += blanks;
        let mut content = String::new();
        loop {
            self.at += 1;
            let length = self.text[self.at..].find('"')?;
            content += &self.text[self.at..self.at + length];
            self.at += length + 1;
            if self.text.as_bytes().get(self.at) != Some(&b'"') {
                break;
            }
            content.push('"'); // doubled: the quote itself
        }
        content += self.plain();
        Some(Cow::Owned(content))
    }

    /// Returns the text before the next comma or line end.
    fn plain(&mut self) -> &'a str {
        let rest = &self.text[self.at..];
        let length = rest.bytes().position(|b| matches!(b, b',' | b'\n' | b'\r')).unwrap_or(rest.len());
        self.at += length;
        &rest[..length]
    }
}

impl<'a> Iterator for Cells<'a> {
    type Item = Cell<'a>;

    fn next(&mut self) -> Option<Cell<'a>> {
        if self.at >= self.text.len() {
            return None;
        }
        let row = self.row;
        self.column += 1;
        let column = self.column;
        let text = self.take();
        if text.is_none() {
            self.at = self.text.len();
        }
        match self.text.as_bytes().get(self.at) {
            Some(b',') => self.at += 1,
            end => {
                let both = end == Some(&b'\r') && self.text.as_bytes().get(self.at + 1) == Some(&b'\n');
                self.at += if both { 2 } else { 1 };
                (self.row, self.column) = (self.row + 1, 0);
            }
        }
        Some(Cell { row, column, text })
    }
}

/// What a cell may contain, for messages.
pub const CELL: &str =
    "an op such as 0F3 (stage, one of F I W B, micro-batch), a pair such as (0F7;3B2)OVERLAP_F_B or nothing";

/// What was expected instead of a cell.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Expected(String);

/// Appends the actions of cell number `cell`, which is not blank; nothing if it is wrong.
pub fn parse(text: &str, cell: u32, actions: &mut Vec<Action>) -> Result<(), Expected> {
    let Some(pair) = text.strip_prefix('(') else {
        actions.push(action(text, cell)?);
        return Ok(());
    };
    let malformed =
        || Expected("a pair such as (0F7;3B2)OVERLAP_F_B: two ops in parentheses, a semicolon between".to_string());
    let (inner, name) = pair.split_once(')').ok_or_else(malformed)?;
    let (first, second) = inner.split_once(';').ok_or_else(malformed)?;
    if name.trim() != "OVERLAP_F_B" {
        return Err(malformed());
    }
    let (first, second) = (action(first.trim(), cell)?, action(second.trim(), cell)?);
    if [first, second].iter().any(|a| !matches!(a.what, What::Op(_) | What::WholeBackward)) {
        return Err(malformed());
    }
    actions.extend([Action { opens_pair: true, ..first }, second]);
    Ok(())
}

fn action(text: &str, cell: u32) -> Result<Action, Expected> {
    let expected = || Expected(CELL.to_string());
    let digits = |text: &str| text.bytes().take_while(u8::is_ascii_digit).count();
    let (stage, rest) = text.split_at(digits(text));
    let letters = rest.bytes().take_while(|b| b.is_ascii_uppercase() || *b == b'_').count();
    let (name, microbatch) = rest.split_at(letters);
    if stage.is_empty() || digits(microbatch) != microbatch.len() {
        return Err(expected());
    }
    let what = named(name).ok_or_else(expected)?;
    let microbatch = match (microbatch, what) {
        ("", What::Collective(_)) => 0,
        ("", _) => return Err(Expected(format!("a micro-batch number after {name}"))),
        (digits, _) => digits.parse().map_err(|_| Expected("a micro-batch number below 2^32".to_string()))?,
    };
    let stage = stage.parse().ok().filter(|&stage| stage <= Op::MAX_STAGE);
    let stage = stage.ok_or_else(|| Expected(format!("a stage number of at most {}", Op::MAX_STAGE)))?;
    Ok(Action { stage, microbatch, cell, what, opens_pair: false })
}

pub fn push(row: &mut String, cell: &str) {
    if !row.is_empty() {
        row.push(',');
    }
    row.push_str(cell);
}
