//! Schedule files made by a grammar, each held against a plain evaluation of the same tree.
//!
//! Every file is also an input of the check `language`: what fails is printed as one. With WORDS_SHOW set all are, each with
//! what it should be.
#![no_main]

#[path = "words/grammar.rs"]
mod grammar;
#[path = "words/plain.rs"]
mod plain;
#[path = "words/write.rs"]
mod write;

use arbitrary::Unstructured;
use libfuzzer_sys::fuzz_target;
use pipesim::internals::open::Order;
use plain::{Failure, Program};

fuzz_target!(|bytes: &[u8]| {
    if let Ok(file) = grammar::file(&mut Unstructured::new(bytes)) {
        check(&file);
    }
});

fn check(file: &grammar::File) {
    let text = write::file(file);
    let request = checks::request(file.devices, file.microbatches, file.chunks);
    let input = write::input(&request, &text);
    let (expected, failed) = (plain::programs(file), Shown(&input));
    let result = checks::compile(&format!("\n{text}"), &request);
    if std::env::var_os("WORDS_SHOW").is_some() {
        eprintln!(
            "{input}{}",
            expected.as_ref().map_or_else(|failure| format!("{failure:?}"), |_| "an order".to_string())
        );
    }
    match (expected, &result) {
        (Ok(expected), Ok(compiled)) => {
            let Order::Fixed(schedule) = &compiled.order else { panic!("a word is an order") };
            for (device, expected) in (0..).zip(&expected) {
                let phase = |index| schedule.phase(device, index).unwrap_or_default().to_string();
                let ops = schedule.program(device).iter().enumerate();
                let found: Program = ops.map(|(index, &op)| (op, phase(index))).collect();
                assert_eq!(&found, expected, "device {device}");
            }
        }
        (Ok(_), Err(error)) => panic!("refused what is a schedule: {error}"),
        (Err(Failure::Refused(why)), Ok(_)) => panic!("accepted what is no schedule: {why}"),
        (Err(_), _) => {}
    }
    checks::compiled(result, &request);
    std::mem::forget(failed);
}

/// Prints the input when a check fails.
struct Shown<'a>(&'a str);

impl Drop for Shown<'_> {
    fn drop(&mut self) {
        eprintln!("as an input of `language`:\n{}", self.0);
    }
}
