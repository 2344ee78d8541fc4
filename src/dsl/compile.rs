//! From a schedule file to an [`Order`]: evaluates `device(r, p, m)` for every device, counts the micro-batches, checks.

use super::draft::{Draft, as_draft};
use super::host::{self, Layout, LayoutValue, Refusal};
use super::language::{dialect, globals};
use super::programs::Written;
use super::request::{Asked, Error, Request, ScheduleFile};
use super::word::Word;
use crate::op::Op;
use crate::open::Order;
use crate::placement::Placement;
use starlark::ErrorKind;
use starlark::codemap::FileSpanRef;
use starlark::docs::{DocItem, DocMember, DocParams};
use starlark::environment::Module;
use starlark::eval::{BeforeStmtFunc, Evaluator};
use starlark::syntax::AstModule;
use starlark::values::{Value, ValueLike};
use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// An order of ops, or what costs will make into one, and where it was written.
#[derive(Debug)]
pub struct Compiled {
    /// The order; every device's ops are complete and valid by themselves.
    pub order: Order,
    /// Its text.
    pub source: Written,
}

/// Stack for evaluating a schedule file, where what nests recurses: a sum of many terms, lists within lists. Only what is
/// touched is taken, and it is more than whoever watches this process's memory lets it take.
#[cfg(not(target_family = "wasm"))]
const STACK_BYTES: usize = 4 << 30;

/// Compiles a schedule file.
pub fn compile(path: &ScheduleFile, request: &Request) -> Result<Compiled, Error> {
    // Some values of the language are too large for it to say so other than by a panic.
    let caught = || {
        catch_unwind(AssertUnwindSafe(|| evaluate(&Asked { path, request }))).unwrap_or_else(|_| {
            Err(Error::Invalid(format!(
                "{} makes a value beyond the budget of {} bytes for the language's values",
                path.file, request.budget.bytes
            )))
        })
    };
    on_deep_stack(caught)
}

/// `work` done on a thread with the deepest stack that this machine grants.
#[cfg(not(target_family = "wasm"))]
fn on_deep_stack<T: Send>(work: impl Fn() -> T + Copy + Send) -> T {
    std::thread::scope(|scope| {
        let stacks = [STACK_BYTES, STACK_BYTES / 16].into_iter();
        let mut threads = stacks.filter_map(|bytes| {
            let thread = std::thread::Builder::new().name("evaluation".to_string()).stack_size(bytes);
            thread.spawn_scoped(scope, work).ok()
        });
        threads.next().and_then(|thread| thread.join().ok()).unwrap_or_else(work)
    })
}

/// `work` done here: there are no threads, and the stack is what the host gives.
#[cfg(target_family = "wasm")]
fn on_deep_stack<T>(work: impl Fn() -> T) -> T {
    work()
}

fn evaluate(asked: &Asked<'_>) -> Result<Compiled, Error> {
    let path = asked.path;
    Module::with_temp_heap(|module| {
        let mut evaluator = Evaluator::new(&module);
        asked.limit(&mut evaluator).map_err(|e| asked.invalid(e))?;
        let ast = AstModule::parse(&path.file, path.text.clone(), &dialect()).map_err(|e| asked.invalid(e))?;
        evaluator.eval_module(ast, &globals()).map_err(|e| asked.invalid(e))?;
        asked.run(&module, &mut evaluator)
    })
}

/// Names of parameters, and defaults as written.
type Parameters = Vec<(String, Option<String>)>;

/// The parameters of `value`, where it is a function.
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
        Ok(Compiled { order, source: Written { placement, microbatches, words, file } })
    }

    /// The options of `device`, beyond r, p and m.
    fn signature(&self, device: Value) -> Result<Parameters, Error> {
        let Some(mut all) = parameters(device) else {
            return Err(Error::Invalid(format!(
                "{}: `device` is no function; write def device(r, p, m):",
                self.path.file
            )));
        };
        let required: Vec<&str> = all.iter().take(3).map(|(name, _)| name.as_str()).collect();
        if required != ["r", "p", "m"] {
            return Err(Error::Invalid(format!(
                "{}: expected def device(r, p, m, ...), found ({})",
                self.path.file,
                required.join(", ")
            )));
        }
        Ok(all.split_off(3))
    }

    /// The values of the options that the user set, chunks included.
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
        signature: &Parameters,
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
                    let known = parameters(value).unwrap_or_default();
                    let takes = |(name, _): &(&str, Value)| known.iter().any(|(parameter, _)| parameter == name);
                    let named: Vec<(&str, Value)> = self.named(options, evaluator).into_iter().filter(takes).collect();
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
        let default = signature.iter().find(|(name, _)| name == "v").and_then(|(_, default)| default.as_deref());
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
}
