//! Compiling a schedule file to an [`Order`]: evaluates `device(r, p, m)` for every device, numbers micro-batches, checks.

use super::draft::{Draft, as_draft};
use super::hints;
use super::host::{self, LayoutValue, PlacementRule, Refusal};
use super::language::{LAYOUTS, MAX_NESTING, dialect, globals, too_deep};
use super::programs::ScheduleSource;
use super::request::{Asked, Budget, Error, Request, ScheduleFile, Takes, chunks_asked};
use super::word::Word;
use pipesim_schedule::op::Op;
use pipesim_schedule::open::Order;
use pipesim_schedule::placement::Placement;
use pipesim_schedule::slices::Slices;
use starlark::ErrorKind;
use starlark::codemap::FileSpanRef;
use starlark::docs::{DocItem, DocMember, DocParams};
use starlark::environment::Module;
use starlark::eval::{BeforeStmtFunc, Evaluator};
use starlark::syntax::AstModule;
use starlark::values::{Value, ValueLike};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// A compiled schedule and its source.
#[derive(Debug)]
pub struct Compiled {
    /// The order; the ops of each device are complete and valid by themselves.
    pub order: Order,
    /// Where its ops are written.
    pub source: ScheduleSource,
}

/// Stack for evaluating a schedule file, in which nested expressions recurse. Only the used part takes memory.
const STACK_BYTES: usize = (u32::MAX as usize) & !0xffff; // just below 4 GiB, for 32-bit addresses

/// Bytes of stack per byte of values if all values are nested.
const STACK_PER_BYTE: usize = 4;

/// Compiles a schedule file.
pub fn compile(path: &ScheduleFile, request: &Request) -> Result<Compiled, Error> {
    evaluated(path, request, |asked, module, evaluator| asked.run(module, evaluator))
}

/// Returns the parts of a request that a schedule file uses, whatever the request's chunks and options; evaluates no word.
pub fn takes(path: &ScheduleFile, request: &Request) -> Result<Takes, Error> {
    evaluated(path, request, |asked, module, evaluator| asked.takes(module, evaluator))
}

/// What to do with an evaluated file.
type Made<T> = for<'v> fn(&Asked<'_>, &Module<'v>, &mut Evaluator<'v, '_, '_>) -> Result<T, Error>;

fn evaluated<T: Send>(path: &ScheduleFile, request: &Request, made: Made<T>) -> Result<T, Error> {
    if let Some(line) = too_deep(&path.file, &path.text) {
        return Err(Error::Invalid(format!(
            "{}:{line}: expected at most {MAX_NESTING} nested operators and brackets, found more; use loops, and \
             concat(list) for a long sum",
            path.file
        )));
    }
    // Starlark panics for some values that are too large.
    let caught = |stack: usize| {
        let budget = Budget { bytes: request.budget.bytes.min(stack / STACK_PER_BYTE), ..request.budget };
        let request = Request { budget, ..request.clone() };
        catch_unwind(AssertUnwindSafe(|| evaluate(&Asked { path, request: &request }, made))).unwrap_or_else(|_| {
            Err(Error::Invalid(format!(
                "{} creates a value that exceeds the budget of {} bytes for values; create smaller values",
                path.file, budget.bytes
            )))
        })
    };
    on_deep_stack(caught)
}

/// Runs `work` on a thread with the largest stack that this machine grants; passes the size of the stack.
#[cfg(not(target_family = "wasm"))]
fn on_deep_stack<T: Send>(work: impl Fn(usize) -> Result<T, Error> + Copy + Send) -> Result<T, Error> {
    let mut refusal = String::new();
    std::thread::scope(|scope| {
        for bytes in [STACK_BYTES, STACK_BYTES / 4, STACK_BYTES / 16] {
            let thread = std::thread::Builder::new().name("evaluation".to_string()).stack_size(bytes);
            match thread.spawn_scoped(scope, move || work(bytes)) {
                Ok(thread) => return thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
                Err(error) => refusal = error.to_string(),
            }
        }
        Err(Error::Machine(format!(
            "cannot create a thread with a stack of {} MiB to evaluate a schedule: {refusal}; raise the limits of this \
             process (ulimit -u, ulimit -v)",
            (STACK_BYTES / 16) >> 20
        )))
    })
}

/// Runs `work` on the current thread: WebAssembly has no others.
#[cfg(target_family = "wasm")]
fn on_deep_stack<T>(work: impl Fn(usize) -> Result<T, Error>) -> Result<T, Error> {
    work(STACK_BYTES)
}

/// Maximum number of stages per device that a schedule file may choose: its user asked for p and m only.
const MAX_OWN_CHUNKS: u32 = 64;

fn evaluate<T>(asked: &Asked<'_>, made: Made<T>) -> Result<T, Error> {
    let path = asked.path;
    Module::with_temp_heap(|module| {
        let mut evaluator = Evaluator::new(&module);
        asked.limit(&mut evaluator).map_err(|e| asked.invalid(e))?;
        let ast = AstModule::parse(&path.file, path.text.clone(), &dialect()).map_err(|e| asked.invalid(e))?;
        evaluator.eval_module(ast, &globals()).map_err(|e| asked.invalid(e))?;
        made(asked, &module, &mut evaluator)
    })
}

/// Shortens the lines of an error message of Starlark, which may quote the file.
fn shortened(text: &str) -> String {
    const MOST: usize = 200;
    let line = |line: &str| match line.char_indices().nth(MOST) {
        Some((end, _)) => format!("{} ...", &line[..end]),
        None => line.to_string(),
    };
    text.lines().map(line).collect::<Vec<_>>().join("\n")
}

/// Whether a text is a number with a decimal point: `2.5`.
fn is_decimal(text: &str) -> bool {
    let digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    text.trim_start_matches('-').split_once('.').is_some_and(|(whole, rest)| digits(whole) && digits(rest))
}

/// Names of parameters, and their defaults as written.
type Parameters = Vec<(String, Option<String>)>;

fn parameters(value: Value) -> Option<Parameters> {
    let DocItem::Member(DocMember::Function(function)) = value.documentation() else { return None };
    let DocParams { pos_only, pos_or_named, named_only, .. } = function.params;
    let all = pos_or_named.into_iter().chain(named_only).chain(pos_only);
    Some(all.map(|param| (param.name, param.default_value)).collect())
}

impl Asked<'_> {
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

    /// Converts an error of Starlark; names the budget if it is exceeded.
    fn invalid(&self, error: starlark::Error) -> Error {
        let (budget, numbers) = (self.request.budget, self.numbers());
        if let ErrorKind::Other(cause) | ErrorKind::Native(cause) | ErrorKind::Value(cause) = error.kind()
            && let Some(Refusal(reason)) = cause.downcast_ref()
        {
            return Error::Unsupported(format!("{} does not exist for {numbers}: {reason}", self.path.name));
        }
        let cause = match error.kind() {
            ErrorKind::Other(cause) => cause.to_string(),
            _ => String::new(),
        };
        let hint = if cause.starts_with("Execution duration limit") {
            format!(
                "\nThe budget is {} evaluation ticks; is there an endless loop? Raise it with `max-ticks`.",
                budget.ticks
            )
        } else if cause.starts_with("Heap memory limit") {
            format!("\nThe budget is {} bytes for values; create fewer and smaller values.", budget.bytes)
        } else {
            String::new()
        };
        let text = hints::without_builtin(&hints::without_guess(&shortened(&error.to_string())));
        if let Some((line, column, close)) = hints::unclosed(&text, &self.path.text) {
            let (file, shown) = (&self.path.file, self.path.text.lines().nth(line - 1).unwrap_or_default());
            return Error::Invalid(format!(
                "{file} is not a schedule for {numbers}:\n{file}:{line}:{column}: expected a {close} that closes this bracket, found the \
                 end of the file; write it\n    {}",
                shown.trim()
            ));
        }
        let line = error.span().map(|span| span.resolve_span().begin.line);
        let line = line.and_then(|line| self.path.text.lines().nth(line)).unwrap_or_default();
        let hint = match hints::hint(&text, line) {
            Some(write) if hint.is_empty() => format!("\n{write}"),
            _ => hint,
        };
        Error::Invalid(format!("{} is not a schedule for {numbers}:\n{}{hint}", self.path.file, text.trim_end()))
    }

    fn run<'v>(&self, module: &Module<'v>, evaluator: &mut Evaluator<'v, '_, '_>) -> Result<Compiled, Error> {
        let device = self.device(module)?;
        let signature = self.signature(device)?;
        let options = self.options(&signature)?;
        let placement = self.placement(module, evaluator, &signature, &options)?;
        let slices = self.slices(&signature, &options)?;
        self.check_size(&placement, &slices)?;
        let drafts = self.drafts(device, &options, evaluator)?;
        let (file, microbatches) = (self.path.file.clone(), self.request.microbatches);
        let word = |draft: &Draft| match draft {
            Draft::Word(word) => Some(word.clone()),
            _ => None,
        };
        let (order, words) = match drafts.iter().map(word).collect::<Option<Vec<Word>>>() {
            Some(words) => (Order::Fixed(self.expand(&placement, &slices, &words)?), words),
            None => (Order::Open(self.open(&placement, &slices, &drafts)?), Vec::new()),
        };
        Ok(Compiled { order, source: ScheduleSource { placement, microbatches, slices, words, file } })
    }

    fn takes<'v>(&self, module: &Module<'v>, evaluator: &mut Evaluator<'v, '_, '_>) -> Result<Takes, Error> {
        let signature = self.signature(self.device(module)?)?;
        let (layout, fixed) = self.layout(module, evaluator, &BTreeMap::new())?;
        let chunks = fixed.or(layout.chunks(self.request.devices)).is_none();
        Ok(Takes { options: signature.into_iter().map(|(name, _)| name).collect(), chunks })
    }

    fn device<'v>(&self, module: &Module<'v>) -> Result<Value<'v>, Error> {
        module.get("device").ok_or_else(|| {
            Error::Invalid(format!(
                "{} defines no function device; write def device(r, p, m): and return the word of device r",
                self.path.file
            ))
        })
    }

    /// Returns the options of `device` after r, p and m.
    fn signature(&self, device: Value) -> Result<Parameters, Error> {
        let Some(mut all) = parameters(device) else {
            return Err(Error::Invalid(format!(
                "{}: device is not a function; write def device(r, p, m):",
                self.path.file
            )));
        };
        let required: Vec<&str> = all.iter().take(3).map(|(name, _)| name.as_str()).collect();
        if required != ["r", "p", "m"] {
            return Err(Error::Invalid(format!(
                "{}: expected def device(r, p, m, ...), found ({}); name the first three parameters r, p and m",
                self.path.file,
                required.join(", ")
            )));
        }
        Ok(all.split_off(3))
    }

    /// Returns the options that the user set, including chunks.
    fn options(&self, signature: &Parameters) -> Result<BTreeMap<String, String>, Error> {
        let mut options = self.request.options.clone();
        let known: Vec<&str> = signature.iter().map(|(name, _)| name.as_str()).collect();
        if let Some(chunks) = self.request.chunks
            && known.contains(&"v")
        {
            options.insert("v".to_string(), chunks.to_string());
        }
        match options.keys().find(|name| !known.contains(&name.as_str())) {
            None => Ok(options),
            Some(unknown) => Err(Error::Usage(format!(
                "{} has no option '{unknown}'; it has {}; give one of these with `set` or after its name, or none",
                self.path.name,
                if known.is_empty() { "none".to_string() } else { known.join(", ") }
            ))),
        }
    }

    /// Returns the requested v: --chunks, or the option of the schedule.
    fn chunks(&self, options: &BTreeMap<String, String>) -> Result<Option<u32>, Error> {
        match options.get("v") {
            None => Ok(self.request.chunks),
            Some(text) => chunks_asked(text).map(Some),
        }
    }

    /// Rejects a number of stages per device that no schedule can have.
    fn check_chunks(&self, chunks: u32, asked: Option<u32>) -> Result<(), Error> {
        let (file, name, numbers) = (&self.path.file, &self.path.name, self.numbers());
        if chunks == 0 {
            return Err(Error::Invalid(format!("{file}: expected v, the stages per device, to be 1 or more, found 0")));
        }
        if asked.is_none() && chunks > MAX_OWN_CHUNKS {
            return Err(Error::Invalid(format!(
                "{file}: expected at most {MAX_OWN_CHUNKS} stages per device if the file sets them, found {chunks}; leave the \
                 number open in the file (placement = loop) and set it with `chunks`"
            )));
        }
        let stages = u64::from(self.request.devices) * u64::from(chunks);
        let (ops, budget) = (stages.saturating_mul(2 * u64::from(self.request.microbatches)), self.request.budget.ops);
        if ops > budget {
            return Err(Error::Invalid(format!(
                "{name} for {numbers} has at least {ops} ops; the budget is {budget} ops; take fewer micro-batches or raise `max-ops`"
            )));
        }
        if stages > u64::from(Op::MAX_STAGE) {
            return Err(Error::Usage(format!(
                "{name} for {numbers}: expected at most {} stages, found {stages}; take fewer devices or `chunks`",
                Op::MAX_STAGE
            )));
        }
        Ok(())
    }

    /// Returns how micro-batches are cut: the option `slices` of the file, or whole micro-batches.
    fn slices(&self, signature: &Parameters, options: &BTreeMap<String, String>) -> Result<Slices, Error> {
        let default = signature.iter().find(|(name, _)| name == "slices").map(|(_, default)| default.clone());
        let Some(default) = default else { return Ok(Slices::default()) };
        let asked = options.get("slices");
        let text = asked.cloned().or(default).unwrap_or_default();
        let count = text.trim().parse().ok().filter(|n| (1..=Op::MAX_SLICES).contains(n));
        count.map(Slices::equal).ok_or_else(|| {
            let what = format!(
                "expected slices, the parts of a micro-batch's sequences, to be a whole number from 1 to {}, found {text}; write \
                 slices=4",
                Op::MAX_SLICES
            );
            if asked.is_some() { Error::Usage(what) } else { Error::Invalid(format!("{}: {what}", self.path.file)) }
        })
    }

    /// Rejects numbers of micro-batches and slices that no schedule can have.
    fn check_size(&self, placement: &Placement, slices: &Slices) -> Result<(), Error> {
        let units = u64::from(self.request.microbatches) * u64::from(slices.count());
        let (ops, budget) = (u64::from(placement.stages()) * 2 * units, self.request.budget.ops);
        match ops > budget || units > u64::from(u32::MAX) {
            false => Ok(()),
            true => Err(Error::Invalid(format!(
                "{} for {} and {} slices has at least {ops} ops; the budget is {budget} ops; take fewer slices",
                self.path.name,
                self.numbers(),
                slices.count()
            ))),
        }
    }

    fn placement<'v>(
        &self,
        module: &Module<'v>,
        evaluator: &mut Evaluator<'v, '_, '_>,
        signature: &Parameters,
        options: &BTreeMap<String, String>,
    ) -> Result<Placement, Error> {
        let asked = self.chunks(options)?;
        let devices = self.request.devices;
        let (layout, fixed) = self.layout(module, evaluator, options)?;
        let default = signature.iter().find(|(name, _)| name == "v").and_then(|(_, default)| default.as_deref());
        let chunks = match (fixed.or(layout.chunks(devices)), asked) {
            (Some(fixed), Some(asked)) if fixed != asked => {
                return Err(Error::Usage(format!(
                    "{} has {fixed} {} per device, but {asked} were requested; omit `chunks`, or its option v",
                    self.path.name,
                    if fixed == 1 { "stage" } else { "stages" }
                )));
            }
            (Some(fixed), _) => fixed,
            (None, Some(asked)) => asked,
            (None, None) => default.and_then(|text| text.parse().ok()).unwrap_or(1),
        };
        self.check_chunks(chunks, asked)?;
        layout.placement(devices, chunks).map_err(|reason| match layout {
            PlacementRule::Custom(_) => Error::Invalid(format!("{}: {reason}", self.path.file)),
            _ => Error::Unsupported(format!("{} does not exist for {}: {reason}", self.path.name, self.numbers())),
        })
    }

    /// Returns the placement of the file, and the stages per device if it fixes them.
    fn layout<'v>(
        &self,
        module: &Module<'v>,
        evaluator: &mut Evaluator<'v, '_, '_>,
        options: &BTreeMap<String, String>,
    ) -> Result<(PlacementRule, Option<u32>), Error> {
        let Some(mut value) = module.get("placement") else { return Ok((PlacementRule::Linear, None)) };
        if let Some(known) = parameters(value) {
            let p = evaluator.heap().alloc(self.request.devices);
            let takes = |(name, _): &(&str, Value)| known.iter().any(|(parameter, _)| parameter == name);
            let named: Vec<(&str, Value)> = self.named(options, evaluator).into_iter().filter(takes).collect();
            value = evaluator.eval_function(value, &[p], &named).map_err(|e| self.invalid(e))?;
        }
        if let Some(value) = value.downcast_ref::<LayoutValue>() {
            return Ok((value.layout.clone(), value.chunks));
        }
        let written = |line: &str| {
            let rest = line.strip_prefix("def ").unwrap_or(line).strip_prefix("placement");
            rest.is_some_and(|rest| rest.trim_start().starts_with(['=', '(']))
        };
        let place = match self.path.text.lines().position(written) {
            Some(line) => format!("{}:{}", self.path.file, line + 1),
            None => self.path.file.clone(),
        };
        let quoted = value
            .unpack_str()
            .and_then(|text| LAYOUTS.iter().find(|(name, layout)| [name, layout.name()].contains(&text)));
        let remedy = match quoted {
            Some((name, _)) => format!("write placement = {name}, without quotes"),
            None => "write one of them".to_string(),
        };
        Err(Error::Invalid(format!(
            "{place}: expected placement = {}, one of the last three with the stages per device as in zigzag(4), or \
             def placement(p): return custom([...]), the device of each stage; found {}; {remedy}",
            LAYOUTS.map(|(name, _)| name).join(", "),
            host::quoted(value)
        )))
    }

    fn named<'o, 'v>(
        &self,
        options: &'o BTreeMap<String, String>,
        evaluator: &Evaluator<'v, '_, '_>,
    ) -> Vec<(&'o str, Value<'v>)> {
        let heap = evaluator.heap();
        let value = |text: &str| match (text, text.parse::<i64>()) {
            (_, Ok(number)) => heap.alloc(number),
            (text, _) if is_decimal(text) => text.parse::<f64>().map_or(Value::new_none(), |number| heap.alloc(number)),
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
                        "{}: expected device({r}, ...) to return a word, or fill, greedy or search, found {}; {}",
                        self.path.file,
                        host::quoted(value),
                        hints::returned(value.get_type())
                    ))
                })
            })
            .collect()
    }
}
