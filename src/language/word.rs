//! Words: the program of a device as a compressed sequence of ops without micro-batch numbers.
//!
//! Repeats are nodes, not copies; only [`Word::visit`] expands them, a few ops at a time.

use pipesim_schedule::op::Kind;
use std::ops::Range;
use std::sync::{Arc, Mutex, PoisonError};

/// Maximum nesting of a word. `word = F + word` in a loop nests; `concat([...])` does not.
pub const MAX_DEPTH: u32 = 1000;

pub const MAX_LEN: u64 = 1 << 31;

/// Maximum length of a flat word that is repeated without walking its nodes.
const MAX_PLAIN: usize = 1 << 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum WordError {
    /// Deeper than [`MAX_DEPTH`].
    #[error("the word is nested deeper than {MAX_DEPTH}; collect the parts in a list and use concat(list)")]
    TooDeep,
    /// Longer than [`MAX_LEN`].
    #[error("the word is longer than the budget of {MAX_LEN} ops; repeat it fewer times")]
    TooLong,
    /// A pair that is not of single ops.
    #[error("overlap(a, b) takes two single ops, as in overlap(F[0], B[1])")]
    NoPair,
    /// A length that is known only after numbering.
    #[error(
        "the length of first(m, word), recompute(word) and offload(word) is unknown; apply them to the whole program"
    )]
    NoLength,
}

/// One op of a word before micro-batches are numbered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Atom {
    pub kind: Kind,
    pub chunk: u32,
    /// The micro-batch and slice, if the schedule names them.
    pub named: Option<Named>,
    /// Whether it is the first of an overlapped pair whose second op follows.
    pub opens_pair: bool,
    /// Line of the op in the schedule file; 0 if unknown.
    pub line: u32,
}

/// What `F[c](i, q)` names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Named {
    pub microbatch: u32,
    pub slice: Option<u32>,
}

/// A word. Cloning is cheap.
#[derive(Clone, Debug)]
pub(super) struct Word {
    node: Arc<WordNode>,
    depth: u32,
    /// Number of ops; `None` if known only after numbering (`first`).
    len: Option<u64>,
}

/// Words in sequence, and where each ends. A word of unknown length counts as 0, and the length of the join is then unknown, too.
#[derive(Debug, Default)]
struct WordList {
    words: Vec<Word>,
    ends: Vec<u64>,
}

impl WordList {
    fn push(&mut self, word: Word) {
        let start = self.ends.last().copied().unwrap_or(0);
        self.ends.push(start.saturating_add(word.len.unwrap_or(0)));
        self.words.push(word);
    }
}

#[derive(Debug)]
enum WordNode {
    Atom(Atom),
    /// The first `count` words of a shared, growing list: `a + b` on the newest view appends in place.
    Join {
        list: Arc<Mutex<WordList>>,
        count: usize,
    },
    Repeat {
        count: u64,
        word: Word,
    },
    Slice {
        word: Word,
        range: Range<u64>,
    },
    Alternate(Word, Word),
    Phase {
        name: Arc<str>,
        word: Word,
    },
    First {
        limit: u32,
        word: Word,
    },
    Offload {
        rule: Arc<Offload>,
        word: Word,
    },
    Recompute {
        /// All chunks if `None`.
        chunks: Option<Arc<[u32]>>,
        word: Word,
    },
}

/// Which activations of a word go to the host, and when they come back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Offload {
    /// All chunks if `None`.
    pub chunks: Option<Vec<u32>>,
    /// Number of compute ops from the start of a RELOAD to the backward.
    pub ahead: u32,
    /// Least number of compute ops from an F to its RELOAD, the F included.
    pub least: u32,
}

/// Context of ops: their phase, and the micro-batches that `first` keeps.
#[derive(Clone, Copy, Debug)]
pub(super) struct OpContext<'a> {
    /// Name of the innermost phase; empty outside of phases.
    pub phase: &'a str,
    /// Ops of micro-batches from this one on are numbered but dropped.
    pub limit: u64,
    /// What goes to the host.
    pub offload: Option<&'a Offload>,
}

/// Takes ops in order, one or several of one context at a time; may end the visit with an error.
pub(super) trait Sink<E>: FnMut(&[Atom], OpContext<'_>) -> Result<(), E> {}
impl<E, F: FnMut(&[Atom], OpContext<'_>) -> Result<(), E>> Sink<E> for F {}

impl Word {
    fn new(node: WordNode, depth: u32, len: Option<u64>) -> Result<Word, WordError> {
        if depth > MAX_DEPTH {
            return Err(WordError::TooDeep);
        }
        if len.is_some_and(|len| len > MAX_LEN) {
            return Err(WordError::TooLong);
        }
        Ok(Word { node: Arc::new(node), depth, len })
    }

    pub fn atom(atom: Atom) -> Word {
        Word { node: Arc::new(WordNode::Atom(atom)), depth: 1, len: Some(1) }
    }

    pub fn empty() -> Word {
        Word { node: Arc::new(WordNode::Join { list: Arc::default(), count: 0 }), depth: 1, len: Some(0) }
    }

    /// Returns two ops as an overlapped pair.
    pub fn overlap(first: &Word, second: &Word) -> Result<Word, WordError> {
        let single = |word: &Word| match word.atoms().as_deref() {
            Some([atom]) => Ok(*atom),
            _ => Err(WordError::NoPair),
        };
        let first = Atom { opens_pair: true, ..single(first)? };
        Word::concat(vec![Word::atom(first), Word::atom(single(second)?)])
    }

    pub fn concat(words: Vec<Word>) -> Result<Word, WordError> {
        let mut list = WordList::default();
        words.into_iter().filter(|word| word.len != Some(0)).for_each(|word| list.push(word));
        let depth = list.words.iter().map(|word| word.depth).max().unwrap_or(0) + 1;
        let len = list.words.iter().try_fold(0_u64, |sum, word| Some(sum.saturating_add(word.len?)));
        let count = list.words.len();
        Word::new(WordNode::Join { list: Arc::new(Mutex::new(list)), count }, depth, len)
    }

    pub fn then(&self, next: &Word) -> Result<Word, WordError> {
        match (self.len, next.len) {
            (Some(0), _) => return Ok(next.clone()),
            (_, Some(0)) => return Ok(self.clone()),
            _ => {}
        }
        let WordNode::Join { list, count } = &*self.node else {
            return Word::concat(vec![self.clone(), next.clone()]);
        };
        let is_own_tail = matches!(&*next.node, WordNode::Join { list: other, .. } if Arc::ptr_eq(list, other));
        let mut newest = list.lock().unwrap_or_else(PoisonError::into_inner);
        if !is_own_tail && newest.words.len() == *count {
            newest.push(next.clone());
            let (depth, len) =
                (self.depth.max(next.depth + 1), self.len.zip(next.len).map(|(a, b)| a.saturating_add(b)));
            return Word::new(WordNode::Join { list: list.clone(), count: count + 1 }, depth, len);
        }
        let copy = newest.words[..*count].iter().cloned().chain([next.clone()]).collect();
        drop(newest);
        Word::concat(copy)
    }

    /// Returns this word `count` times; the empty word for 0 or less.
    pub fn times(&self, count: i64) -> Result<Word, WordError> {
        match count {
            ..=0 => Ok(Word::empty()),
            1 => Ok(self.clone()),
            _ => {
                let count = count as u64;
                let len = self.len.map(|len| len.saturating_mul(count));
                Word::new(WordNode::Repeat { count, word: self.clone() }, self.depth + 1, len)
            }
        }
    }

    pub fn len(&self) -> Result<u64, WordError> {
        self.len.ok_or(WordError::NoLength)
    }

    /// Returns the ops in `range`, clamped to the word.
    pub fn slice(&self, range: Range<u64>) -> Result<Word, WordError> {
        let len = self.len()?;
        let range = range.start.min(len)..range.end.min(len);
        match range.end.saturating_sub(range.start) {
            0 => Ok(Word::empty()),
            n if n == len => Ok(self.clone()),
            n => Word::new(WordNode::Slice { word: self.clone(), range }, self.depth + 1, Some(n)),
        }
    }

    /// Returns a0 b0 a1 b1 .., then the rest of the longer word.
    pub fn alternate(a: &Word, b: &Word) -> Result<Word, WordError> {
        let len = a.len()?.saturating_add(b.len()?);
        Word::new(WordNode::Alternate(a.clone(), b.clone()), a.depth.max(b.depth) + 1, Some(len))
    }

    pub fn phase(&self, name: &str) -> Result<Word, WordError> {
        Word::new(WordNode::Phase { name: name.into(), word: self.clone() }, self.depth + 1, self.len)
    }

    /// Returns the ops of micro-batches below `limit`; the others are numbered, then dropped.
    pub fn first(&self, limit: u32) -> Result<Word, WordError> {
        let len = self.len.filter(|&len| len == 0); // only the empty word's length is known
        Word::new(WordNode::First { limit, word: self.clone() }, self.depth + 1, len)
    }

    /// Returns the word with R directly before each backward of `chunks`, or of all; before the pair if the backward is in one.
    pub fn recompute(&self, chunks: Option<Vec<u32>>) -> Result<Word, WordError> {
        let len = self.len.filter(|&len| len == 0);
        let chunks = chunks.map(Arc::from);
        Word::new(WordNode::Recompute { chunks, word: self.clone() }, self.depth + 1, len)
    }

    /// Returns the word with an O after each F whose activation goes to the host, and an L before its backward.
    pub fn offload(&self, rule: Offload) -> Result<Word, WordError> {
        let len = self.len.filter(|&len| len == 0);
        Word::new(WordNode::Offload { rule: Arc::new(rule), word: self.clone() }, self.depth + 1, len)
    }

    /// Calls `sink` for all ops in order, one or several at a time; stops at its first error.
    pub fn visit<E>(&self, sink: &mut impl Sink<E>) -> Result<(), E> {
        self.walk(0..self.len.unwrap_or(u64::MAX), OpContext { phase: "", limit: u64::MAX, offload: None }, sink)
    }

    /// Returns the words of a join that have ops in `range`, and where the first of them starts; nothing for other nodes.
    fn joined(&self, range: &Range<u64>) -> (Vec<Word>, u64) {
        let WordNode::Join { list, count } = &*self.node else { return (Vec::new(), 0) };
        let list = list.lock().unwrap_or_else(PoisonError::into_inner);
        if self.len.is_none() {
            return (list.words[..*count].to_vec(), 0);
        }
        let ends = &list.ends[..*count];
        let first = ends.partition_point(|&end| end <= range.start);
        let last = ends.partition_point(|&end| end < range.end).min(count.saturating_sub(1));
        let start = first.checked_sub(1).map_or(0, |before| ends[before]);
        (list.words.get(first..=last).unwrap_or_default().to_vec(), start)
    }

    /// Returns the ops of a short flat word.
    fn atoms(&self) -> Option<Vec<Atom>> {
        let atom = |word: &Word| match &*word.node {
            WordNode::Atom(atom) => Some(*atom),
            _ => None,
        };
        match &*self.node {
            WordNode::Join { count: ..=MAX_PLAIN, .. } => self.joined(&(0..u64::MAX)).0.iter().map(atom).collect(),
            _ => atom(self).map(|atom| vec![atom]),
        }
    }

    fn walk<E>(&self, range: Range<u64>, context: OpContext<'_>, sink: &mut impl Sink<E>) -> Result<(), E> {
        let range = range.start..range.end.min(self.len.unwrap_or(u64::MAX));
        if range.start >= range.end {
            return Ok(());
        }
        match &*self.node {
            WordNode::Atom(atom) => sink(std::slice::from_ref(atom), context),
            WordNode::Join { .. } => {
                let (words, start) = self.joined(&range);
                walk_join(&words, range.start - start..range.end.saturating_sub(start), context, sink)
            }
            WordNode::Repeat { count, word } => walk_repeat(word, *count, range, context, sink),
            WordNode::Slice { word, range: inner } => word.walk(
                inner.start + range.start..(inner.start.saturating_add(range.end)).min(inner.end),
                context,
                sink,
            ),
            WordNode::Alternate(a, b) => walk_alternate(a, b, range, context, sink),
            WordNode::Phase { name, word } => word.walk(range, OpContext { phase: name, ..context }, sink),
            WordNode::First { limit, word } => {
                word.walk(range, OpContext { limit: context.limit.min(u64::from(*limit)), ..context }, sink)
            }
            WordNode::Offload { rule, word } => word.walk(range, OpContext { offload: Some(rule), ..context }, sink),
            WordNode::Recompute { chunks, word } => walk_recompute(word, chunks.as_deref(), range, context, sink),
        }
    }
}

fn walk_join<E>(words: &[Word], range: Range<u64>, context: OpContext<'_>, sink: &mut impl Sink<E>) -> Result<(), E> {
    let mut start = 0_u64; // of the word within the join; a join with a word of unknown length is always walked whole
    for word in words {
        if start >= range.end {
            break;
        }
        let len = word.len.unwrap_or(u64::MAX - start);
        let (from, to) = (range.start.saturating_sub(start), (range.end - start.min(range.end)).min(len));
        word.walk(from..to, context, sink)?;
        start += word.len.unwrap_or(0);
    }
    Ok(())
}

fn walk_repeat<E>(
    word: &Word,
    count: u64,
    range: Range<u64>,
    context: OpContext<'_>,
    sink: &mut impl Sink<E>,
) -> Result<(), E> {
    let Some(len) = word.len else {
        return (0..count).try_for_each(|_| word.walk(0..u64::MAX, context, sink));
    };
    if len == 0 {
        return Ok(());
    }
    let (atoms, (joined, _)) = (word.atoms(), word.joined(&(0..u64::MAX))); // looked up once, not per repetition
    for turn in range.start / len..count.min(range.end.div_ceil(len)) {
        let part = range.start.saturating_sub(turn * len)..(range.end - turn * len).min(len);
        match &atoms {
            Some(atoms) => sink(&atoms[part.start as usize..part.end as usize], context)?,
            None if joined.is_empty() => word.walk(part, context, sink)?,
            None => walk_join(&joined, part, context, sink)?,
        }
    }
    Ok(())
}

/// Walks `word` with R before each backward of `chunks`, or of all.
fn walk_recompute<E>(
    word: &Word,
    chunks: Option<&[u32]>,
    range: Range<u64>,
    context: OpContext<'_>,
    sink: &mut impl Sink<E>,
) -> Result<(), E> {
    let mut opener: Option<Atom> = None; // of a pair whose second op follows
    // Behind a pointer; otherwise each nested call would be a new type.
    let mut insert: Insert<'_, E> = &mut |atoms, inner| {
        for &atom in atoms {
            if atom.opens_pair && opener.is_none() {
                opener = Some(atom);
                continue;
            }
            let unit = [opener.take(), Some(atom)].into_iter().flatten();
            for part in unit.clone() {
                let recomputes = chunks.is_none_or(|chunks| chunks.contains(&part.chunk));
                if part.kind.is_backward() && recomputes {
                    sink(&[Atom { kind: Kind::R, opens_pair: false, ..part }], inner)?;
                }
            }
            unit.into_iter().try_for_each(|part| sink(&[part], inner))?;
        }
        Ok(())
    };
    word.walk(range, context, &mut insert)
}

/// A sink that inserts ops, behind a pointer.
type Insert<'a, E> = &'a mut dyn FnMut(&[Atom], OpContext<'_>) -> Result<(), E>;

/// Number of ops of an alternation that are collected at a time.
const PIECE: u64 = 1 << 16;

/// A sink behind a pointer.
type Collect<'a> = &'a mut dyn FnMut(&[Atom], OpContext<'_>) -> Result<(), ()>;

/// Collects the needed parts of both words, then alternates their ops.
fn walk_alternate<E>(
    a: &Word,
    b: &Word,
    range: Range<u64>,
    context: OpContext<'_>,
    sink: &mut impl Sink<E>,
) -> Result<(), E> {
    let (a_len, b_len) = (a.len.unwrap_or(0), b.len.unwrap_or(0));
    let paired = 2 * a_len.min(b_len);
    // number of ops of a among the first n ops
    let of_a =
        |n: u64| if n <= paired { n.div_ceil(2) } else { paired / 2 + if a_len > b_len { n - paired } else { 0 } };
    let collect = |word: &Word, part: Range<u64>| {
        let mut ops: Vec<(Atom, String)> = Vec::new();
        // Behind a pointer; otherwise each nested alternation would be a new type.
        let mut sink: Collect<'_> = &mut |atoms, inner| {
            ops.extend(atoms.iter().map(|&atom| (atom, inner.phase.to_string())));
            Ok(())
        };
        let _ = word.walk(part, context, &mut sink);
        ops.into_iter()
    };
    // In pieces, so that a sink can stop early.
    let mut from = range.start;
    while from < range.end {
        let piece = from..range.end.min(from + PIECE);
        let mut from_a = collect(a, of_a(piece.start)..of_a(piece.end));
        let mut from_b = collect(b, piece.start - of_a(piece.start)..piece.end - of_a(piece.end));
        for i in piece {
            let turn_of_a = if i < paired { i % 2 == 0 } else { a_len > b_len };
            let Some((atom, phase)) = (if turn_of_a { from_a.next() } else { from_b.next() }) else { return Ok(()) };
            sink(&[atom], OpContext { phase: &phase, ..context })?;
        }
        from = from.saturating_add(PIECE);
    }
    Ok(())
}
