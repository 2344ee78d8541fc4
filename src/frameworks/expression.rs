//! Expressions of a framework's file: Starlark over facts.

use super::error::Error;
use super::facts::{Facts, NAMES};
use serde_json::Value as Json;
use starlark::environment::{FrozenModule, Globals, Module};
use starlark::eval::Evaluator;
use starlark::syntax::{AstModule, Dialect};
use starlark::values::FrozenHeapName;
use std::fmt::Write;

/// Number of an expression of a [`Program`].
pub(crate) type Expression = usize;

/// The expressions of one file before they are compiled.
#[derive(Default)]
pub(crate) struct Source {
    texts: Vec<String>,
}

impl Source {
    /// Adds an expression.
    pub fn add(&mut self, text: &str) -> Expression {
        self.texts.push(text.trim().to_string());
        self.texts.len() - 1
    }

    /// Adds a text in which `{expression}` stands for its value; `{{` and `}}` are braces.
    pub fn add_template(&mut self, text: &str) -> Expression {
        let (mut parts, mut plain) = (Vec::new(), String::new());
        let mut rest = text;
        while let Some(at) = rest.find(['{', '}']) {
            let (before, after) = rest.split_at(at);
            plain += before;
            let brace = &after[..1];
            rest = &after[1..];
            match (rest.strip_prefix(brace), rest.split_once('}')) {
                (Some(after), _) => {
                    plain += brace;
                    rest = after;
                }
                (None, Some((expression, after))) if brace == "{" => {
                    parts.extend([quoted(&std::mem::take(&mut plain)), format!("str({expression})")]);
                    rest = after;
                }
                _ => plain += brace,
            }
        }
        plain += rest;
        parts.push(quoted(&plain));
        self.add(&parts.join(" + "))
    }

    /// Compiles all expressions.
    ///
    /// # Errors
    /// One that is not Starlark, or names something that is no fact.
    pub fn compile(self, file: &str) -> Result<Program, Error> {
        let facts: Vec<Vec<&'static str>> = self.texts.iter().map(|text| named(text)).collect();
        let mut text = String::new();
        for (number, expression) in self.texts.iter().enumerate() {
            let _ = writeln!(text, "def e{number}({}):\n    return ({expression})\n", facts[number].join(", "));
        }
        let wrong = |error: starlark::Error| {
            let line = error.span().map_or(0, |span| span.resolve_span().begin.line);
            let text = self.texts.get(line / 3).cloned().unwrap_or_default();
            Error::Expression { file: file.to_string(), text, why: error.without_diagnostic().to_string() }
        };
        let ast = AstModule::parse(file, text, &Dialect::Standard).map_err(wrong)?;
        let module = Module::with_temp_heap(|module| {
            Evaluator::new(&module).eval_module(ast, &Globals::standard()).map_err(wrong)?;
            let frozen = module.freeze_named(FrozenHeapName::User(Box::new(file.to_string())));
            frozen.map_err(|error| Error::File { file: file.to_string(), why: format!("{error:?}") })
        })?;
        Ok(Program { file: file.to_string(), module, texts: self.texts, facts })
    }
}

fn quoted(text: &str) -> String {
    Json::from(text).to_string()
}

/// Returns the facts that an expression names, texts in quotes aside.
fn named(text: &str) -> Vec<&'static str> {
    let (mut found, mut word, mut quote, mut last) = (Vec::new(), String::new(), None, ' ');
    for letter in text.chars().chain([' ']) {
        match quote {
            Some(end) => quote = (letter != end || last == '\\').then_some(end),
            None if letter.is_alphanumeric() || letter == '_' => word.push(letter),
            None => {
                found.extend(NAMES.iter().map(|(name, _)| *name).filter(|name| *name == word));
                word.clear();
                quote = ['"', '\''].contains(&letter).then_some(letter);
            }
        }
        last = letter;
    }
    found.sort_unstable();
    found.dedup();
    found
}

/// Compiled expressions.
#[derive(Debug)]
pub(crate) struct Program {
    file: String,
    module: FrozenModule,
    texts: Vec<String>,
    /// By expression: the facts that it names.
    facts: Vec<Vec<&'static str>>,
}

impl Program {
    /// Runs `work` with a function that returns the value of an expression, `None` if a fact that it names is unknown.
    ///
    /// # Errors
    /// Those of `work`; the function fails with Starlark's error, as in a division by 0.
    pub fn evaluate<T>(
        &self,
        facts: &Facts,
        work: impl FnOnce(&mut dyn FnMut(Expression) -> Result<Option<Json>, Error>) -> Result<T, Error>,
    ) -> Result<T, Error> {
        Module::with_temp_heap(|module| {
            let (mut evaluator, heap) = (Evaluator::new(&module), module.heap());
            let result = work(&mut |expression| {
                let values = self.facts[expression].iter().map(|name| Some(heap.alloc(facts.get(name)?)));
                let Some(values) = values.collect::<Option<Vec<_>>>() else { return Ok(None) };
                let wrong = |why: String| {
                    let text = self.texts[expression].clone();
                    Error::Expression { file: self.file.clone(), text, why }
                };
                let function = self.module.get(&format!("e{expression}")).map_err(|error| wrong(error.to_string()))?;
                let function = heap.access_owned_frozen_value(&function);
                let value = evaluator.eval_function(function, &values, &[]);
                let value = value.map_err(|error| wrong(error.without_diagnostic().to_string()))?;
                value.to_json_value().map(Some).map_err(|error| wrong(error.to_string()))
            });
            drop(evaluator);
            result
        })
    }
}
