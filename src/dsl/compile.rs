//! From a schedule file to a [`Schedule`]: evaluates `device(r, p, m)` for every device, counts the micro-batches, checks.

use super::draft::{Draft, as_draft};
use super::expansion::Expansion;
use super::host::{self, Layout, LayoutValue, Refusal};
use super::library::SchedulePath;
use super::word::Word;
use crate::op::Op;
use crate::open::{OpenSchedule, Order, Program};
use crate::placement::Placement;
use crate::schedule::{Fault, Programs, Schedule, grid};
use starlark::ErrorKind;
use starlark::codemap::FileSpanRef;
use starlark::docs::{DocFunction, DocItem, DocMember, DocParams};
use starlark::environment::Module;
use starlark::eval::{BeforeStmtFunc, Evaluator};
use starlark::syntax::{AstModule, Dialect};
use starlark::values::{Value, ValueLike};
use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Room made for ops before they are known to come: address space, not yet memory.
const MAX_RESERVED_OPS: usize = 1 << 26;

/// How much a schedule file may use up.
#[derive(Clone, Copy, Debug)]
pub struct Budget {
    /// Calls and loop turns of the language.
    pub ticks: u64,
    /// Memory of the language's values.
    pub bytes: usize,
    /// Ops of the whole schedule.
    pub ops: u64,
}

impl Budget {
    /// More ops than this cannot be numbered.
    pub const MAX_OPS: u64 = (1 << 31) - 1;
}

impl Default for Budget {
    /// 50 million ticks, 1 GiB, 2^31 - 1 ops.
    fn default() -> Budget {
        Budget { ticks: 50_000_000, bytes: 1 << 30, ops: Budget::MAX_OPS }
    }
}

/// What is asked of a schedule file.
#[derive(Clone, Debug)]
pub struct Request {
    /// p.
    pub devices: u32,
    /// m.
    pub microbatches: u32,
    /// v, where the schedule leaves it open.
    pub chunks: Option<u32>,
    /// The schedule's own options, as `--set` gives them.
    pub options: BTreeMap<String, String>,
    /// What evaluating it may use up.
    pub budget: Budget,
}

/// Why there is no schedule.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The request does not fit the file: an unknown option, chunks that the schedule does not leave open.
    #[error("{0}")]
    Usage(String),
    /// The file is wrong, refuses these numbers, or exceeds a budget.
    #[error("{0}")]
    Invalid(String),
}

/// An order of ops, or what costs will make into one, and where it was written.
#[derive(Debug)]
pub struct Compiled {
    /// The order; every device's ops are complete and valid by themselves.
    pub order: Order,
    /// Its text.
    pub source: Source,
}

/// What a schedule was expanded from.
#[derive(Debug)]
pub struct Source {
    placement: Placement,
    microbatches: u32,
    words: Vec<Word>,
    file: String,
}

impl Source {
    /// `file:line` where op number `index` of `device` was written.
    pub fn location(&self, device: u32, index: usize) -> String {
        let Some(word) = self.words.get(device as usize) else { return self.file.clone() };
        let mut ops = Vec::new();
        let mut expansion = Expansion::new(&self.placement, device, self.microbatches, &mut ops);
        let _ = word.visit(&mut |atoms, context| {
            atoms.iter().try_for_each(|atom| {
                let kept = expansion.take(atom, context.limit).map_err(drop)?;
                if kept && expansion.len() > index { Err(()) } else { Ok(()) }
            })
        });
        format!("{}:{}", self.file, expansion.line)
    }
}

/// Stack for evaluating a schedule file, where what nests recurses: a sum of many terms, lists within lists. Only what is
/// touched is taken, and it is more than whoever watches this process's memory lets it take.
const STACK_BYTES: usize = 4 << 30;

/// Compiles the schedule file at `path`.
///
/// # Errors
/// See [`Error`].
pub fn compile(path: &SchedulePath, request: &Request) -> Result<Compiled, Error> {
    // Some values of the language are too large for it to say so other than by a panic.
    let caught = || {
        catch_unwind(AssertUnwindSafe(|| evaluate(path, request))).unwrap_or_else(|_| {
            Err(Error::Invalid(format!(
                "{} makes a value beyond the budget of {} bytes for the language's values",
                path.file, request.budget.bytes
            )))
        })
    };
    std::thread::scope(|scope| {
        // The most that this machine grants.
        let stacks = [STACK_BYTES, STACK_BYTES / 16].into_iter();
        let mut threads = stacks.filter_map(|bytes| {
            let thread = std::thread::Builder::new().name("evaluation".to_string()).stack_size(bytes);
            thread.spawn_scoped(scope, caught).ok()
        });
        threads.next().and_then(|thread| thread.join().ok()).unwrap_or_else(caught)
    })
}

fn evaluate(path: &SchedulePath, request: &Request) -> Result<Compiled, Error> {
    Module::with_temp_heap(|module| {
        let mut evaluator = Evaluator::new(&module);
        let file = Evaluation { path, request };
        file.limit(&mut evaluator).map_err(|e| file.invalid(e))?;
        let ast = AstModule::parse(&path.file, path.text.clone(), &dialect()).map_err(|e| file.invalid(e))?;
        evaluator.eval_module(ast, &host::globals()).map_err(|e| file.invalid(e))?;
        file.run(&module, &mut evaluator)
    })
}

/// Standard Starlark with top-level statements, so that a file can compute its constants.
pub(super) fn dialect() -> Dialect {
    Dialect { enable_top_level_stmt: true, enable_f_strings: true, ..Dialect::Standard }
}

struct Evaluation<'a> {
    path: &'a SchedulePath,
    request: &'a Request,
}

/// What `device`'s signature says.
struct Signature {
    /// Options beyond r, p and m, with their defaults as written.
    options: Vec<(String, Option<String>)>,
}

/// The parameters of a function: names, and defaults as written.
fn params(function: &DocFunction) -> impl Iterator<Item = (String, Option<String>)> {
    let DocParams { pos_only, pos_or_named, named_only, .. } = &function.params;
    let all = pos_or_named.iter().chain(named_only).chain(pos_only);
    all.map(|param| (param.name.clone(), param.default_value.clone()))
}

/// Names of the parameters of `value`, where it is a function.
fn parameters(value: Value) -> BTreeSet<String> {
    match value.documentation() {
        DocItem::Member(DocMember::Function(function)) => params(&function).map(|(name, _)| name).collect(),
        _ => BTreeSet::new(),
    }
}

impl Evaluation<'_> {
    fn limit(&self, evaluator: &mut Evaluator) -> starlark::Result<()> {
        let budget = self.request.budget;
        evaluator.set_max_tick_count(budget.ticks).map_err(starlark::Error::new_other)?;
        evaluator.set_max_heap_size(budget.bytes).map_err(starlark::Error::new_other)?;
        evaluator.set_max_callstack_size(200).map_err(starlark::Error::new_other)?;
        evaluator.before_stmt_for_dap(BeforeStmtFunc::Fn(&|span: FileSpanRef<'_>, _, _| {
            host::LINE.set(span.resolve_span().begin.line as u32 + 1);
        }));
        Ok(())
    }

    /// An error of the language, with the budget named where one ran out.
    fn invalid(&self, error: starlark::Error) -> Error {
        let (budget, numbers) = (self.request.budget, self.numbers());
        if let ErrorKind::Other(cause) | ErrorKind::Native(cause) | ErrorKind::Value(cause) = error.kind()
            && let Some(Refusal(reason)) = cause.downcast_ref()
        {
            return Error::Invalid(format!("{} does not exist for {numbers}: {reason}", self.path.name));
        }
        let text = format!("{error}");
        let lower = text.to_lowercase();
        let hint = if lower.contains("tick") {
            format!(
                "\nThe budget is {} evaluation ticks; a loop that does not end? Raise it with --max-ticks.",
                budget.ticks
            )
        } else if lower.contains("heap") || lower.contains("memory") {
            format!("\nThe budget is {} bytes for the language's values.", budget.bytes)
        } else {
            String::new()
        };
        Error::Invalid(format!("{} is not a schedule for {numbers}:\n{}{hint}", self.path.file, text.trim_end()))
    }

    fn numbers(&self) -> String {
        format!("p = {}, m = {}", self.request.devices, self.request.microbatches)
    }

    fn run<'v>(&self, module: &Module<'v>, evaluator: &mut Evaluator<'v, '_, '_>) -> Result<Compiled, Error> {
        let device = module.get("device").ok_or_else(|| {
            Error::Invalid(format!(
                "{} defines no function `device`; write def device(r, p, m): and return the word of device r",
                self.path.file
            ))
        })?;
        let signature = self.signature(device)?;
        let options = self.options(&signature)?;
        let placement = self.placement(module, evaluator, &signature, &options)?;
        let ops = 2 * u64::from(placement.stages()) * u64::from(self.request.microbatches);
        if ops > self.request.budget.ops {
            return Err(Error::Invalid(format!(
                "{} for {} has at least {ops} ops; the budget is {} ops; take fewer micro-batches or raise --max-ops",
                self.path.name,
                self.numbers(),
                self.request.budget.ops
            )));
        }
        let drafts = self.drafts(device, &options, evaluator)?;
        let (file, microbatches) = (self.path.file.clone(), self.request.microbatches);
        let word = |draft: &Draft| match draft {
            Draft::Word(word) => Some(word.clone()),
            _ => None,
        };
        let (order, words) = match drafts.iter().map(word).collect::<Option<Vec<Word>>>() {
            Some(words) => (Order::Fixed(self.expand(&placement, &words)?), words),
            None => (Order::Open(self.open(&placement, &drafts)?), Vec::new()),
        };
        Ok(Compiled { order, source: Source { placement, microbatches, words, file } })
    }

    fn signature(&self, device: Value) -> Result<Signature, Error> {
        let DocItem::Member(DocMember::Function(function)) = device.documentation() else {
            return Err(Error::Invalid(format!(
                "{}: `device` is no function; write def device(r, p, m):",
                self.path.file
            )));
        };
        let all: Vec<_> = params(&function).collect();
        let required: Vec<&str> = all.iter().take(3).map(|(name, _)| name.as_str()).collect();
        if required != ["r", "p", "m"] {
            return Err(Error::Invalid(format!(
                "{}: expected def device(r, p, m, ...), found ({})",
                self.path.file,
                required.join(", ")
            )));
        }
        Ok(Signature { options: all.into_iter().skip(3).collect() })
    }

    /// The values of the options that the user set, chunks included.
    fn options(&self, signature: &Signature) -> Result<BTreeMap<String, String>, Error> {
        let mut options = self.request.options.clone();
        let known: Vec<&str> = signature.options.iter().map(|(name, _)| name.as_str()).collect();
        if let Some(chunks) = self.request.chunks
            && known.contains(&"v")
        {
            options.insert("v".to_string(), chunks.to_string());
        }
        match options.keys().find(|name| !known.contains(&name.as_str())) {
            None => Ok(options),
            Some(unknown) => Err(Error::Usage(format!(
                "{} has no option '{unknown}'; it has {}",
                self.path.name,
                if known.is_empty() { "none".to_string() } else { known.join(", ") }
            ))),
        }
    }

    /// v as asked for, by --chunks or as an option of the schedule's own.
    fn chunks(&self, options: &BTreeMap<String, String>) -> Result<Option<u32>, Error> {
        match options.get("v") {
            None => Ok(self.request.chunks),
            Some(text) => match text.parse() {
                Ok(v) if v > 0 => Ok(Some(v)),
                _ => Err(Error::Usage(format!("expected v, the stages a device, to be 1 or more, found {text}"))),
            },
        }
    }

    fn placement<'v>(
        &self,
        module: &Module<'v>,
        evaluator: &mut Evaluator<'v, '_, '_>,
        signature: &Signature,
        options: &BTreeMap<String, String>,
    ) -> Result<Placement, Error> {
        let asked = self.chunks(options)?;
        let devices = self.request.devices;
        let given = module.get("placement");
        let (layout, fixed) = match given {
            None => (Layout::Linear, None),
            Some(value) => {
                let value = if value.downcast_ref::<LayoutValue>().is_some() {
                    value
                } else {
                    let p = evaluator.heap().alloc(devices);
                    let known = parameters(value);
                    let named: Vec<(&str, Value)> =
                        self.named(options, evaluator).into_iter().filter(|(name, _)| known.contains(*name)).collect();
                    evaluator.eval_function(value, &[p], &named).map_err(|e| self.invalid(e))?
                };
                match value.downcast_ref::<LayoutValue>() {
                    Some(value) => (value.layout.clone(), value.chunks),
                    None => {
                        return Err(Error::Invalid(format!(
                            "{}: expected placement = linear, loop, v_shape, zigzag, bidirectional or def placement(p): return custom([...]), found {}",
                            self.path.file,
                            host::shown(value)
                        )));
                    }
                }
            }
        };
        let default =
            signature.options.iter().find(|(name, _)| name == "v").and_then(|(_, default)| default.as_deref());
        let chunks = match (fixed.or(layout.chunks(devices)), asked) {
            (Some(fixed), Some(asked)) if fixed != asked => {
                return Err(Error::Usage(format!(
                    "{} has {fixed} {} a device, found --chunks {asked}; leave --chunks out",
                    self.path.name,
                    if fixed == 1 { "stage" } else { "stages" }
                )));
            }
            (Some(fixed), _) => fixed,
            (None, Some(asked)) => asked,
            (None, None) => default.and_then(|text| text.parse().ok()).unwrap_or(1),
        };
        let stages = u64::from(devices) * u64::from(chunks);
        if chunks == 0 || stages > u64::from(Op::MAX_STAGE) || 2 * stages > self.request.budget.ops {
            return Err(Error::Usage(format!(
                "expected 1 or more chunks and few enough for {stages} stages, found {chunks}"
            )));
        }
        layout.placement(devices, chunks).map_err(|reason| match layout {
            Layout::Custom(_) => Error::Invalid(format!("{}: {reason}", self.path.file)),
            _ => Error::Invalid(format!("{} does not exist for {}: {reason}", self.path.name, self.numbers())),
        })
    }

    /// The options as values of the language.
    fn named<'o, 'v>(
        &self,
        options: &'o BTreeMap<String, String>,
        evaluator: &Evaluator<'v, '_, '_>,
    ) -> Vec<(&'o str, Value<'v>)> {
        let heap = evaluator.heap();
        let value = |text: &str| match (text, text.parse::<i64>()) {
            (_, Ok(number)) => heap.alloc(number),
            ("True" | "true", _) => Value::new_bool(true),
            ("False" | "false", _) => Value::new_bool(false),
            ("None" | "none", _) => Value::new_none(),
            (text, _) => heap.alloc(text),
        };
        options.iter().map(|(name, text)| (name.as_str(), value(text))).collect()
    }

    fn drafts<'v>(
        &self,
        device: Value<'v>,
        options: &BTreeMap<String, String>,
        evaluator: &mut Evaluator<'v, '_, '_>,
    ) -> Result<Vec<Draft>, Error> {
        let heap = evaluator.heap();
        let named = self.named(options, evaluator);
        (0..self.request.devices)
            .map(|r| {
                let numbers = [heap.alloc(r), heap.alloc(self.request.devices), heap.alloc(self.request.microbatches)];
                let value = evaluator.eval_function(device, &numbers, &named).map_err(|e| self.invalid(e))?;
                as_draft(value).ok_or_else(|| {
                    Error::Invalid(format!(
                        "{}: expected device({r}, ...) to return a word such as m * (F + B), or fill, greedy or search, found {}",
                        self.path.file,
                        host::shown(value)
                    ))
                })
            })
            .collect()
    }

    fn expand(&self, placement: &Placement, words: &[Word]) -> Result<Schedule, Error> {
        let m = self.request.microbatches;
        let mut programs = Programs::default();
        let mut fault: Option<(u32, usize, u32, String)> = None; // the first one's device, op number, line, what
        for (device, word) in words.iter().enumerate() {
            let mut expansion = Expansion::new(placement, device as u32, m, &mut programs.ops);
            let result = word.visit(&mut |atoms, context| expansion.take_all(atoms, context));
            let result = result.and_then(|()| expansion.missing().map_or(Ok(()), Err));
            if let (Err(what), None) = (result, &fault) {
                fault = Some((device as u32, expansion.len(), expansion.line, what));
            }
            let phases = expansion.phases;
            programs.finish(phases);
            if programs.ops.len() as u64 > self.request.budget.ops {
                return Err(Error::Invalid(format!(
                    "{} is beyond the budget of {} ops",
                    self.path.name, self.request.budget.ops
                )));
            }
            if device == 0 {
                // Most devices have as many ops as the first.
                programs.ops.reserve((programs.ops.len() * (words.len() - 1)).min(MAX_RESERVED_OPS));
            }
        }
        match fault {
            None => Ok(Schedule::new(&self.path.name, placement.clone(), m, programs)),
            Some(fault) => Err(self.fault(&programs, fault)),
        }
    }

    /// What costs are to settle. A search's goal is that of the first device that names one.
    fn open(&self, placement: &Placement, drafts: &[Draft]) -> Result<OpenSchedule, Error> {
        let programs = drafts.iter().enumerate().map(|(device, draft)| self.program(placement, device as u32, draft));
        Ok(OpenSchedule {
            name: self.path.name.clone(),
            placement: placement.clone(),
            microbatches: self.request.microbatches,
            programs: programs.collect::<Result<_, _>>()?,
            goal: drafts.iter().find_map(Draft::goal).unwrap_or_default(),
        })
    }

    fn program(&self, placement: &Placement, device: u32, draft: &Draft) -> Result<Program, Error> {
        let expand = |word: &Word, floating: bool| -> Result<Vec<Op>, Error> {
            let mut programs = Programs::default();
            (0..device).for_each(|_| programs.finish(Vec::new()));
            let mut expansion = Expansion::new(placement, device, self.request.microbatches, &mut programs.ops);
            let result = word.visit(&mut |atoms, context| expansion.take_all(atoms, context));
            if floating {
                expansion.complete_weights();
            }
            match result.and_then(|()| expansion.missing().map_or(Ok(()), Err)) {
                Ok(()) => Ok(programs.ops),
                Err(what) => {
                    let (index, line) = (expansion.len(), expansion.line);
                    programs.finish(Vec::new());
                    Err(self.fault(&programs, (device, index, line, what)))
                }
            }
        };
        Ok(match draft {
            Draft::Word(word) => Program::Fixed(expand(word, false)?),
            Draft::Fill { word, cap } => Program::Fill { ops: expand(word, true)?, cap: *cap },
            Draft::Greedy { priority, cap } => Program::Greedy { priority: priority.clone(), cap: *cap },
            Draft::Search { split, cap, start, .. } => {
                let start = start.as_ref().map(|start| self.program(placement, device, start).map(Box::new));
                Program::Search { split: *split, cap: *cap, start: start.transpose()? }
            }
        })
    }

    /// The fault at op number `index` of `device`, written on `line`.
    fn fault(&self, programs: &Programs, (device, index, line, what): (u32, usize, u32, String)) -> Error {
        let fault = Fault { device, index: Some(index), what, grid: grid(&programs.rows(), device, index) };
        let place = if line > 0 { format!("{}:{line}", self.path.file) } else { self.path.file.clone() };
        Error::Invalid(format!("{place}: not a schedule for {}: {fault}", self.numbers()))
    }
}
