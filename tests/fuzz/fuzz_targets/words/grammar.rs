//! Trees of schedule files, made from bytes: free ones, and ones that spell an order that runs.

use arbitrary::{Result, Unstructured};
use pipesim::Kind;

/// A whole number of the language.
#[derive(Clone, Debug)]
pub enum Number {
    Plain(i64),
    R,
    P,
    M,
    Add(Box<Number>, Box<Number>),
    Sub(Box<Number>, Box<Number>),
    Min(Box<Number>, Box<Number>),
    Max(Box<Number>, Box<Number>),
}

/// One op.
#[derive(Clone, Debug)]
pub struct Atom {
    pub kind: Kind,
    pub chunk: u32,
    pub microbatch: Option<Number>,
}

/// A word.
#[derive(Clone, Debug)]
pub enum Word {
    Op(Atom),
    Variable(usize),
    Add(Box<Word>, Box<Word>),
    /// `true`: the number stands first.
    Times(bool, Number, Box<Word>),
    Concat(Vec<Word>),
    Alternate(Box<Word>, Box<Word>),
    Overlap(Atom, Atom),
    First(Number, Box<Word>),
    Phase(usize, Box<Word>),
    Slice(Box<Word>, Option<Number>, Option<Number>),
    /// The first where one number is below the other, else the second.
    If(Number, Number, Box<Word>, Box<Word>),
}

/// One line, or a loop of one line.
#[derive(Clone, Debug)]
pub enum Statement {
    Set(usize, Word),
    Append(usize, Word),
    Loop(Number, usize, Word),
}

/// What `device` returns.
#[derive(Clone, Debug)]
pub enum Value {
    Word(Word),
    Fill(Word, Option<u8>),
    Greedy(bool, Option<u8>),
    Search { split: bool, span: bool, cap: Option<u8>, start: Option<Word> },
}

/// Statements, then a value.
#[derive(Clone, Debug)]
pub struct Body {
    pub statements: Vec<Statement>,
    pub value: Value,
}

/// Where stages are.
#[derive(Clone, Debug)]
pub enum Layout {
    Unsaid,
    Linear,
    Loop(Option<u32>),
    V,
    Zigzag(Option<u32>),
    Bidirectional(Option<u32>),
    /// `true`: by a function.
    Custom(bool, Vec<u32>),
}

/// A schedule file and what is asked of it.
#[derive(Clone, Debug)]
pub struct File {
    pub devices: u32,
    pub microbatches: u32,
    pub chunks: Option<u32>,
    pub layout: Layout,
    /// One for all devices, or one for each.
    pub bodies: Vec<Body>,
}

/// Names of phases.
pub const PHASES: [&str; 3] = ["warm-up", "steady", "drain"];

pub fn file(u: &mut Unstructured) -> Result<File> {
    let (devices, microbatches) = (u.int_in_range(1..=6)?, u.int_in_range(1..=12)?);
    let (layout, chunks) = layout(u, devices)?;
    let mut file = File { devices, microbatches, chunks, layout, bodies: Vec::new() };
    if u.ratio(1, 4)? {
        let mut maker = Maker { variables: 0, statements: Vec::new(), room: 40 };
        let value = maker.value(u)?;
        file.bodies.push(Body { statements: maker.statements, value });
        return Ok(file);
    }
    for list in super::plain::runnable(u, &file)? {
        let mut maker = Maker { variables: 0, statements: Vec::new(), room: 60 };
        let word = maker.spell(u, list, true)?;
        file.bodies.push(Body { statements: maker.statements, value: Value::Word(word) });
    }
    Ok(file)
}

fn layout(u: &mut Unstructured, devices: u32) -> Result<(Layout, Option<u32>)> {
    let fixed = if u.ratio(1, 3)? { Some(u.int_in_range(1..=3)?) } else { None };
    let layout = match u.int_in_range(0..=9)? {
        0 => Layout::Unsaid,
        1 => Layout::Linear,
        2 => Layout::Loop(fixed),
        3 | 4 => Layout::V,
        5 => Layout::Zigzag(fixed),
        6 | 7 => Layout::Bidirectional(fixed),
        _ => {
            let chunks = u.int_in_range(1..=3)?;
            let mut list: Vec<u32> = (0..devices * chunks).map(|stage| stage % devices).collect();
            for at in (1..list.len()).rev() {
                list.swap(at, u.int_in_range(0..=at)?);
            }
            if u.ratio(1, 16)? {
                list.push(u.int_in_range(0..=devices)?);
            }
            Layout::Custom(u.arbitrary()?, list)
        }
    };
    let open = matches!(layout, Layout::Loop(None) | Layout::Zigzag(None) | Layout::Bidirectional(None));
    let asked = if open || u.ratio(1, 16)? { u.int_in_range(0..=3)? } else { 0 };
    Ok((layout, Some(asked).filter(|&asked| asked > 0)))
}

/// Makes the words of one body.
struct Maker {
    variables: usize,
    statements: Vec<Statement>,
    /// How many more nodes it may make.
    room: usize,
}

impl Maker {
    fn value(&mut self, u: &mut Unstructured) -> Result<Value> {
        let cap = |u: &mut Unstructured| -> Result<Option<u8>> { Ok(u.arbitrary::<Option<u8>>()?.map(|cap| cap % 9)) };
        Ok(match u.int_in_range(0..=9)? {
            0 => Value::Fill(self.word(u, 3)?, cap(u)?),
            1 => Value::Greedy(u.arbitrary()?, cap(u)?),
            2 => Value::Search {
                split: u.arbitrary()?,
                span: u.arbitrary()?,
                cap: cap(u)?,
                start: if u.arbitrary()? { Some(self.word(u, 2)?) } else { None },
            },
            _ => Value::Word(self.word(u, 5)?),
        })
    }

    fn number(&mut self, u: &mut Unstructured, depth: u32) -> Result<Number> {
        let most = if depth == 0 { 4 } else { 9 };
        Ok(match u.int_in_range(0..=most)? {
            0 => Number::R,
            1 => Number::P,
            2 => Number::M,
            3 | 4 => Number::Plain(u.int_in_range(-2..=7)?),
            which => {
                let (a, b) = (Box::new(self.number(u, depth - 1)?), Box::new(self.number(u, depth - 1)?));
                match which {
                    5 | 6 => Number::Sub(a, b),
                    7 => Number::Add(a, b),
                    8 => Number::Min(a, b),
                    _ => Number::Max(a, b),
                }
            }
        })
    }

    fn atom(&mut self, u: &mut Unstructured) -> Result<Atom> {
        let kind = *u.choose(&Kind::COSTED)?;
        let chunk = if u.ratio(1, 2)? { u.int_in_range(0..=3)? } else { 0 };
        let microbatch = if u.ratio(1, 6)? { Some(self.number(u, 1)?) } else { None };
        Ok(Atom { kind, chunk, microbatch })
    }

    fn word(&mut self, u: &mut Unstructured, depth: u32) -> Result<Word> {
        if depth == 0 || self.room == 0 || u.is_empty() {
            return Ok(Word::Op(self.atom(u)?));
        }
        self.room -= 1;
        let boxed = |maker: &mut Maker, u: &mut Unstructured| Ok(Box::new(maker.word(u, depth - 1)?));
        Ok(match u.int_in_range(0..=15)? {
            0..=2 => Word::Add(boxed(self, u)?, boxed(self, u)?),
            3..=5 => Word::Times(u.arbitrary()?, self.number(u, 2)?, boxed(self, u)?),
            6 => {
                let count = u.int_in_range(0..=4)?;
                Word::Concat((0..count).map(|_| self.word(u, depth - 1)).collect::<Result<_>>()?)
            }
            7 => Word::Alternate(boxed(self, u)?, boxed(self, u)?),
            8 => Word::Overlap(self.atom(u)?, self.atom(u)?),
            9 => Word::First(self.number(u, 1)?, boxed(self, u)?),
            10 => Word::Phase(u.int_in_range(0..=PHASES.len() - 1)?, boxed(self, u)?),
            11 => {
                let bound = |maker: &mut Maker, u: &mut Unstructured| -> Result<Option<Number>> {
                    if u.arbitrary()? { Ok(Some(maker.number(u, 1)?)) } else { Ok(None) }
                };
                Word::Slice(boxed(self, u)?, bound(self, u)?, bound(self, u)?)
            }
            12 => Word::If(self.number(u, 1)?, self.number(u, 1)?, boxed(self, u)?, boxed(self, u)?),
            13 => {
                let word = self.word(u, depth - 1)?;
                let variable = self.set(word);
                let more = self.word(u, depth - 1)?;
                let statement = match u.arbitrary()? {
                    true => Statement::Append(variable, more),
                    false => Statement::Loop(self.number(u, 1)?, variable, more),
                };
                self.statements.push(statement);
                Word::Variable(variable)
            }
            _ if self.variables > 0 => Word::Variable(u.int_in_range(0..=self.variables - 1)?),
            _ => Word::Op(self.atom(u)?),
        })
    }

    fn set(&mut self, word: Word) -> usize {
        self.statements.push(Statement::Set(self.variables, word));
        self.variables += 1;
        self.variables - 1
    }

    /// One of the many ways to write the units of `list` one after the other; `whole`: they are a device's program.
    fn spell(&mut self, u: &mut Unstructured, list: Vec<Word>, whole: bool) -> Result<Word> {
        if self.room == 0 || u.is_empty() {
            return Ok(Word::Concat(list));
        }
        self.room -= 1;
        let plain = list.iter().all(|unit| matches!(unit, Word::Op(_)));
        Ok(match u.int_in_range(0..=11)? {
            0 | 1 if list.len() > 1 => {
                let mut list = list;
                let rest = list.split_off(u.int_in_range(1..=list.len() - 1)?);
                Word::Add(Box::new(self.spell(u, list, false)?), Box::new(self.spell(u, rest, false)?))
            }
            2 | 3 if plain && list.len() > 1 => {
                let of = |parity: usize| list.iter().enumerate().filter(move |(at, _)| at % 2 == parity);
                let [even, odd] = [0, 1].map(|parity| of(parity).map(|(_, unit)| unit.clone()).collect::<Vec<_>>());
                Word::Alternate(Box::new(self.spell(u, even, false)?), Box::new(self.spell(u, odd, false)?))
            }
            4 | 5 => {
                let (before, after) = (u.int_in_range(0..=3)?, u.int_in_range(0..=3)?);
                let mut longer: Vec<Word> = (0..before).map(|_| bystander(u)).collect::<Result<_>>()?;
                longer.extend(list);
                for _ in 0..after {
                    longer.push(bystander(u)?);
                }
                let end = if after == 0 { None } else { Some(Number::Plain(-after)) };
                Word::Slice(Box::new(self.spell(u, longer, false)?), Some(Number::Plain(before)), end)
            }
            6 => Word::Phase(u.int_in_range(0..=PHASES.len() - 1)?, Box::new(self.spell(u, list, whole)?)),
            7 if whole => {
                let mut longer = list;
                let backward = |unit: &Word| matches!(unit, Word::Op(Atom { kind: Kind::I | Kind::B, .. }));
                let last = longer.iter().rposition(backward).filter(|_| u.arbitrary().unwrap_or(false));
                if let Some(unit) = last.map(|at| &mut longer[at])
                    && let Word::Op(backward) = unit.clone()
                {
                    // A pair of which `first` cuts one off.
                    let forward = Atom {
                        kind: Kind::F,
                        chunk: backward.chunk,
                        microbatch: backward.microbatch.as_ref().map(|_| Number::M),
                    };
                    *unit = match u.arbitrary()? {
                        true => Word::Overlap(forward, backward),
                        false => Word::Overlap(backward, forward),
                    };
                }
                for _ in 0..u.int_in_range(0..=2)? {
                    longer.push(bystander(u)?);
                }
                Word::First(Number::M, Box::new(self.spell(u, longer, false)?))
            }
            8 | 9 => {
                // A list that grows, and another that goes on from its middle.
                let mut list = list;
                let rest = list.split_off(u.int_in_range(0..=list.len())?);
                let start = self.spell(u, list, false)?;
                let variable = self.set(start);
                if u.arbitrary()? {
                    let side = Box::new(bystander(u)?);
                    self.set(Word::Add(Box::new(Word::Variable(variable)), side));
                }
                for unit in rest {
                    self.statements.push(Statement::Append(variable, unit));
                }
                Word::Variable(variable)
            }
            10 => Word::Times(true, Number::Plain(1), Box::new(self.spell(u, list, whole)?)),
            _ => Word::Concat(list),
        })
    }
}

/// An op that is there to be cut off again.
fn bystander(u: &mut Unstructured) -> Result<Word> {
    let (kind, chunk) = (*u.choose(&Kind::COSTED)?, u.int_in_range(0..=1)?);
    Ok(Word::Op(Atom { kind, chunk, microbatch: None }))
}
