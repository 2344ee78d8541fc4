//! The meaning of a schedule file's tree, worked out op by op without any compression.

use super::grammar::{Atom, Body, File, Layout, Number, PHASES, Statement, Value, Word};
use arbitrary::{Result as Made, Unstructured};
use pipesim::{Kind, Op};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Why there is no order.
#[derive(Debug)]
pub enum Failure {
    /// The file is no schedule for these numbers.
    Refused(String),
    /// Too long, or for costs to decide.
    Unknown,
}

/// One device's ops, each with the phase it is in.
pub type Program = Vec<(Op, String)>;

/// Longest word that is worked out.
const MOST_OPS: usize = 3000;

fn refuse<T>(why: impl Into<String>) -> Result<T, Failure> {
    Err(Failure::Refused(why.into()))
}

/// By device: the stages and directions that it holds, in the order of chunks.
fn held(file: &File) -> Result<Vec<Vec<(u32, u32)>>, Failure> {
    let p = file.devices;
    let (fixed, name) = match &file.layout {
        Layout::Unsaid | Layout::Linear => (Some(1), 'l'),
        Layout::V => (Some(2), 'z'),
        Layout::Loop(v) => (*v, 'l'),
        Layout::Zigzag(v) => (*v, 'z'),
        Layout::Bidirectional(v) => (*v, 'b'),
        Layout::Custom(_, list) => (Some((list.len() as u32 / p).max(1)), 'c'),
    };
    if let (Some(fixed), Some(asked)) = (fixed, file.chunks)
        && fixed != asked
    {
        return refuse("chunks that the placement does not have");
    }
    let v = fixed.or(file.chunks).unwrap_or(1);
    let device_of: Vec<u32> = match (name, &file.layout) {
        (_, Layout::Custom(_, list)) => list.clone(),
        ('z', _) => (0..p * v).map(|s| if s / p % 2 == 0 { s % p } else { p - 1 - s % p }).collect(),
        _ => (0..p * v).map(|s| s % p).collect(),
    };
    let mut held = vec![Vec::new(); p as usize];
    for (stage, &device) in (0..).zip(&device_of) {
        match held.get_mut(device as usize) {
            Some(chunks) => chunks.push((stage, 0)),
            None => return refuse("a device that is none"),
        }
    }
    if name == 'b' {
        if p % 2 == 1 {
            return refuse("an odd number of devices for two directions");
        }
        (0..).zip(&device_of).for_each(|(stage, &device)| held[(p - 1 - device) as usize].push((stage, 1)));
    }
    if held.iter().any(|chunks| chunks.is_empty() || chunks.len() != held[0].len()) {
        return refuse("devices that hold different numbers of stages");
    }
    Ok(held)
}

/// The micro-batches of a direction.
fn own(file: &File, direction: u32) -> Range<u32> {
    let (m, half) = (file.microbatches, file.microbatches.div_ceil(2));
    match (&file.layout, direction) {
        (Layout::Bidirectional(_), 0) => 0..half,
        (Layout::Bidirectional(_), _) => half..m,
        _ => 0..m,
    }
}

/// One op of a word before micro-batches are counted.
#[derive(Clone, Debug)]
struct Raw {
    kind: Kind,
    chunk: u32,
    microbatch: Option<u32>,
    opens: bool,
    limit: u32,
    phase: Option<usize>,
}

/// A word, or an op that stands for one.
#[derive(Clone, Debug)]
struct Raws {
    ops: Vec<Raw>,
    /// Whether its length is known without counting.
    counted: bool,
    /// Whether it is a bare `F`, not yet a word.
    bare: bool,
}

fn word(ops: Vec<Raw>, counted: bool) -> Result<Raws, Failure> {
    if ops.len() > MOST_OPS {
        Err(Failure::Unknown)
    } else {
        Ok(Raws { counted: counted || ops.is_empty(), ops, bare: false })
    }
}

struct Scope {
    r: i64,
    p: i64,
    m: i64,
    variables: BTreeMap<usize, Raws>,
}

impl Scope {
    fn number(&self, number: &Number) -> i64 {
        let both = |a: &Number, b: &Number| (self.number(a), self.number(b));
        match number {
            Number::Plain(n) => *n,
            Number::R => self.r,
            Number::P => self.p,
            Number::M => self.m,
            Number::Add(a, b) => both(a, b).0 + both(a, b).1,
            Number::Sub(a, b) => both(a, b).0 - both(a, b).1,
            Number::Min(a, b) => both(a, b).0.min(both(a, b).1),
            Number::Max(a, b) => both(a, b).0.max(both(a, b).1),
        }
    }

    fn natural(&self, number: &Number) -> Result<u32, Failure> {
        u32::try_from(self.number(number)).or_else(|_| refuse("a negative number"))
    }

    fn atom(&self, Atom { kind, chunk, microbatch }: &Atom) -> Result<Raw, Failure> {
        let microbatch = microbatch.as_ref().map(|number| self.natural(number)).transpose()?;
        Ok(Raw { kind: *kind, chunk: *chunk, microbatch, opens: false, limit: u32::MAX, phase: None })
    }

    fn word(&self, tree: &Word) -> Result<Raws, Failure> {
        match tree {
            Word::Op(atom) => Ok(Raws { bare: atom.microbatch.is_none(), ..word(vec![self.atom(atom)?], true)? }),
            Word::Variable(variable) => Ok(self.variables[variable].clone()),
            Word::Add(a, b) => self.all(&[&**a, &**b]),
            Word::Concat(list) => self.all(&list.iter().collect::<Vec<_>>()),
            Word::Times(_, count, one) => {
                let (count, one) = (self.number(count).max(0) as usize, self.word(one)?);
                if count * one.ops.len() > MOST_OPS {
                    return Err(Failure::Unknown);
                }
                let (length, counted) = (one.ops.len(), one.counted);
                word(one.ops.into_iter().cycle().take(count * length).collect(), counted)
            }
            Word::Alternate(a, b) => {
                let (a, b) = (self.word(a)?, self.word(b)?);
                if !a.counted || !b.counted {
                    return refuse("alternate of a word without a length");
                }
                let longer = a.ops.len().max(b.ops.len());
                let turn = |i: usize| a.ops.get(i).into_iter().chain(b.ops.get(i)).cloned();
                word((0..longer).flat_map(turn).collect(), true)
            }
            Word::Overlap(a, b) => word(vec![Raw { opens: true, ..self.atom(a)? }, self.atom(b)?], true),
            Word::First(limit, one) => {
                let (limit, mut one) = (self.natural(limit)?, self.word(one)?);
                one.ops.iter_mut().for_each(|op| op.limit = op.limit.min(limit));
                word(one.ops, false)
            }
            Word::Phase(name, one) => {
                let mut one = self.word(one)?;
                one.ops.iter_mut().for_each(|op| op.phase = op.phase.or(Some(*name)));
                word(one.ops, one.counted)
            }
            Word::Slice(one, from, to) => {
                let one = self.word(one)?;
                if one.bare || !one.counted {
                    return refuse("a slice of what has no length");
                }
                let length = one.ops.len() as i64;
                let bound = |n: &Option<Number>, default: i64| {
                    let n = n.as_ref().map_or(default, |n| self.number(n));
                    if n < 0 { (length + n).max(0) } else { n.min(length) }
                };
                let (from, to) = (bound(from, 0), bound(to, length));
                word(one.ops[from as usize..to.max(from) as usize].to_vec(), true)
            }
            Word::If(a, b, x, y) => self.word(if self.number(a) < self.number(b) { x } else { y }),
        }
    }

    fn all(&self, list: &[&Word]) -> Result<Raws, Failure> {
        let parts = list.iter().map(|part| self.word(part)).collect::<Result<Vec<_>, _>>()?;
        let counted = parts.iter().all(|part| part.counted);
        word(parts.into_iter().flat_map(|part| part.ops).collect(), counted)
    }

    fn append(&mut self, variable: usize, more: &Word) -> Result<(), Failure> {
        let more = self.word(more)?;
        let before = &self.variables[&variable];
        let (ops, counted) = ([&before.ops[..], &more.ops[..]].concat(), before.counted && more.counted);
        self.variables.insert(variable, word(ops, counted)?);
        Ok(())
    }

    fn body(&mut self, body: &Body) -> Result<Vec<Raw>, Failure> {
        for statement in &body.statements {
            match statement {
                Statement::Set(variable, value) => {
                    let value = self.word(value)?;
                    self.variables.insert(*variable, value);
                }
                Statement::Append(variable, more) => self.append(*variable, more)?,
                Statement::Loop(count, variable, more) => {
                    for _ in 0..self.number(count) {
                        self.append(*variable, more)?;
                    }
                }
            }
        }
        match &body.value {
            Value::Word(one) => Ok(self.word(one)?.ops),
            _ => Err(Failure::Unknown),
        }
    }
}

/// The order that a file states.
pub fn programs(file: &File) -> Result<Vec<Program>, Failure> {
    let held = held(file)?;
    let raws = (0..file.devices).map(|device| {
        let body = file.bodies.get(device as usize).unwrap_or(&file.bodies[0]);
        let (r, p, m) = (device.into(), file.devices.into(), file.microbatches.into());
        Scope { r, p, m, variables: BTreeMap::new() }.body(body)
    });
    let raws = raws.collect::<Result<Vec<_>, _>>()?;
    raws.iter().zip(&held).map(|(raws, held)| program(file, held, raws)).collect()
}

/// Counts micro-batches, drops what `first` cuts off, checks.
fn program(file: &File, held: &[(u32, u32)], raws: &[Raw]) -> Result<Program, Failure> {
    let (v, m, p) = (held.len(), file.microbatches as usize, file.devices as usize);
    if raws.len() > 64 * 3 * v * (m + 4 * p) {
        return refuse("far longer than it can need");
    }
    let mut next: Vec<[u32; 2]> = held.iter().map(|&(_, direction)| [own(file, direction).start; 2]).collect();
    let mut pending: Vec<Vec<u32>> = vec![Vec::new(); v];
    let mut program: Program = Vec::new();
    let mut open = false;
    for raw in raws {
        let chunk = raw.chunk as usize;
        let Some(&(stage, direction)) = held.get(chunk) else { return refuse("a chunk that is none") };
        let microbatch = match (raw.kind, raw.microbatch) {
            (Kind::W, None) if pending[chunk].is_empty() => return refuse("a W without an I"),
            (Kind::W, None) => pending[chunk].remove(0),
            (Kind::W, Some(named)) => {
                pending[chunk].retain(|&waiting| waiting != named);
                named
            }
            (kind, named) => {
                let counter = &mut next[chunk][usize::from(kind != Kind::F)];
                *counter += 1;
                let microbatch = named.unwrap_or(*counter - 1);
                if kind == Kind::I {
                    pending[chunk].push(microbatch);
                }
                microbatch
            }
        };
        let op = Op::new(raw.kind, stage, microbatch).in_direction(direction);
        let kept = microbatch < raw.limit;
        if std::mem::take(&mut open) {
            let first = &mut program.last_mut().expect("it opened a pair").0;
            if kept {
                pair(*first, op, raw.opens)?;
            } else {
                *first = first.alone();
            }
        }
        if kept {
            open = raw.opens;
            let phase = raw.phase.map_or("", |phase| PHASES[phase]).to_string();
            program.push((if raw.opens { op.opening_pair() } else { op }, phase));
        }
    }
    if open {
        return refuse("a pair without its second op");
    }
    complete(file, held, &program)?;
    Ok(program)
}

/// An overlapped pair is one forward and one I or B that do not need each other.
fn pair(first: Op, second: Op, opens: bool) -> Result<(), Failure> {
    let kinds = (first.kind() == Kind::F, second.kind() == Kind::F);
    let own = (first.stage(), first.microbatch()) == (second.stage(), second.microbatch());
    if kinds.0 == kinds.1 || first.kind() == Kind::W || second.kind() == Kind::W || own || opens {
        return refuse("no overlapped pair");
    }
    Ok(())
}

/// Every micro-batch of every chunk: F, then B, or F, then I, then W; each once.
fn complete(file: &File, held: &[(u32, u32)], program: &Program) -> Result<(), Failure> {
    let mut left: BTreeSet<(u32, u32, u32)> = BTreeSet::new();
    for &(stage, direction) in held {
        left.extend(own(file, direction).map(|microbatch| (stage, direction, microbatch)));
    }
    let mut kinds: BTreeMap<(u32, u32, u32), String> = BTreeMap::new();
    for (op, _) in program {
        let key = (op.stage(), op.direction(), op.microbatch());
        if !left.contains(&key) {
            return refuse("a micro-batch of another direction, or none");
        }
        kinds.entry(key).or_default().push(op.kind().letter());
    }
    match left.iter().find(|key| !matches!(kinds.get(key).map(String::as_str), Some("FB" | "FIW"))) {
        Some(key) => refuse(format!("{key:?} runs {:?}", kinds.get(key))),
        None => Ok(()),
    }
}

/// By device, ops and pairs in an order that runs; sometimes with one thing wrong. Chosen by what is left of `u`.
pub fn runnable(u: &mut Unstructured, file: &File) -> Made<Vec<Vec<Word>>> {
    let Ok(held) = held(file) else { return Ok(vec![Vec::new(); file.devices as usize]) };
    let stages = held.iter().flatten().map(|&(stage, _)| stage + 1).max().unwrap_or(0);
    let counted = u.arbitrary()?;
    let split = u.int_in_range(0..=2)?;
    let pairs = u.arbitrary()?;
    let mut done: BTreeSet<(char, u32, u32)> = BTreeSet::new();
    let mut lists: Vec<Vec<Word>> = vec![Vec::new(); held.len()];
    loop {
        let choices: Vec<Vec<Choice>> =
            held.iter().map(|held| choices(file, held, &done, (stages, counted, split))).collect();
        let devices: Vec<usize> = (0..held.len()).filter(|&device| !choices[device].is_empty()).collect();
        if devices.is_empty() {
            break;
        }
        let device = *u.choose(&devices).unwrap_or(&devices[0]);
        let open = &choices[device];
        let first = *u.choose(open).unwrap_or(&open[0]);
        let partner = open.iter().find(|other| {
            let own = (other.stage, other.microbatch) == (first.stage, first.microbatch);
            !own && (first.kind == Kind::F) != (other.kind == Kind::F) && other.kind != Kind::W
        });
        let named = !counted || u.ratio(1, 8)?;
        let atom = |choice: Choice| Atom {
            kind: choice.kind,
            chunk: choice.chunk,
            microbatch: named.then_some(Number::Plain(choice.microbatch.into())),
        };
        let partner = partner.filter(|_| pairs && first.kind != Kind::W && u.ratio(1, 2).unwrap_or(false));
        lists[device].push(match partner {
            Some(&second) => Word::Overlap(atom(first), atom(second)),
            None => Word::Op(atom(first)),
        });
        for choice in [Some(&first), partner].into_iter().flatten() {
            done.insert((choice.kind.letter(), choice.stage, choice.microbatch));
        }
    }
    if u.ratio(1, 8)? {
        let device = u.choose_index(lists.len())?;
        if lists[device].len() > 1 {
            let (a, b) = (u.choose_index(lists[device].len())?, u.choose_index(lists[device].len())?);
            lists[device].swap(a, b);
            if u.ratio(1, 4)? {
                lists[device].remove(a);
            }
        }
    }
    Ok(lists)
}

/// An op that could run next.
#[derive(Clone, Copy, Debug)]
struct Choice {
    kind: Kind,
    chunk: u32,
    stage: u32,
    microbatch: u32,
}

/// What a device could run. `split`: backwards whole (0), halved (1) or either by micro-batch (2). `counted`: per chunk and
/// half of the work only the lowest micro-batch.
fn choices(
    file: &File,
    held: &[(u32, u32)],
    done: &BTreeSet<(char, u32, u32)>,
    (stages, counted, split): (u32, bool, u32),
) -> Vec<Choice> {
    let mut list = Vec::new();
    for (chunk, &(stage, direction)) in (0..).zip(held) {
        let has = |kind: char, stage: u32, i: u32| done.contains(&(kind, stage, i));
        let back = |stage: u32, i: u32| has('I', stage, i) || has('B', stage, i);
        let halved = |i: u32| split == 1 || split == 2 && (i + stage) % 2 == 1;
        let batches = || own(file, direction);
        let lowest = |open: &dyn Fn(u32) -> bool, ready: &dyn Fn(u32) -> bool| -> Vec<u32> {
            let left: Vec<u32> = batches().filter(|&i| open(i)).collect();
            let left = if counted { &left[..left.len().min(1)] } else { &left[..] };
            left.iter().copied().filter(|&i| ready(i)).collect()
        };
        let forwards = lowest(&|i| !has('F', stage, i), &|i| stage == 0 || has('F', stage - 1, i));
        let after = |i: u32| has('F', stage, i) && (stage + 1 == stages || back(stage + 1, i));
        let backwards = lowest(&|i| !back(stage, i), &after);
        let weights = lowest(&|i| halved(i) && !has('W', stage, i), &|i| has('I', stage, i));
        list.extend(forwards.into_iter().map(|microbatch| Choice { kind: Kind::F, chunk, stage, microbatch }));
        let kind = |i: u32| if halved(i) { Kind::I } else { Kind::B };
        list.extend(backwards.into_iter().map(|microbatch| Choice {
            kind: kind(microbatch),
            chunk,
            stage,
            microbatch,
        }));
        list.extend(weights.into_iter().map(|microbatch| Choice { kind: Kind::W, chunk, stage, microbatch }));
    }
    list
}
