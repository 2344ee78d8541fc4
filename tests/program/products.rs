//! `--products` on the emulator, whose cuBLASLt has three algorithms that differ in time and in the order of sums.

use crate::emulated::{compile, pipesim};
use crate::support::*;
use serde_json::{Value, json};

/// A high learning rate makes the losses show the last bits of sums.
const SMALL: &str =
    "--seq 16 --channels 32 --heads 2 --blocks 2 --stages 2 --micro 2 --warmup 0 --steps 6 --lr 0.1 --schedule 1f1b";

/// What a run of two devices printed, with the fastest algorithm of each device.
fn run_with(fastest: &str, more: &str) -> (Option<i32>, Value, String) {
    let variables = [("EMULATOR_FASTEST", fastest), ("EMULATOR_JITTER", "0")];
    run(&mut pipesim(&variables), &format!("{SMALL} --device cuda --link copy --format json {more}"))
}

/// The losses and the chosen algorithms of a run that succeeds.
fn trained(fastest: &str, more: &str) -> (Value, Vec<String>) {
    let (code, json, told) = run_with(fastest, more);
    assert_eq!(code, Some(0), "{more}: {told}");
    let record = json["products"].as_str().unwrap_or_default();
    (json["runs"][0]["losses"].clone(), record.split_terminator("; ").map(str::to_string).collect())
}

/// Hash and name of each product, without times.
fn algorithms(record: &[String]) -> Vec<&str> {
    record.iter().map(|product| product.split_once(" (number").unwrap().0).collect()
}

#[test]
fn products_take_the_fastest_algorithm_the_same_everywhere_and_again() {
    compile();
    let (first, none) = trained("1,1", "");
    assert!(none.is_empty(), "{none:?}");
    let (losses, record) = trained("1,1", "--products timed");
    assert!(record.len() > 5 && record.iter().all(|product| product.contains("(number 2 of ")), "{record:?}");
    assert_ne!(losses, first, "another order of sums");
    // the second device alone would take the third algorithm, and does so for the products of its head only
    let (mixed, in_one) = trained("1,2", "--products timed");
    let third = in_one.iter().filter(|product| product.contains("(number 3 of ")).count();
    assert!(third > 0 && 2 * third < in_one.len(), "{in_one:?}");
    let (of_ranks, in_two) = trained("1,2", "--products timed -n 2");
    assert_eq!((&of_ranks, algorithms(&in_two)), (&mixed, algorithms(&in_one)));
    // a record repeats the bits, whatever is fast now
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("run.json");
    let write = |json: Value| std::fs::write(&file, json.to_string()).unwrap();
    let again = format!("--products {}", file.display());
    write(json!({"provenance": {"products": in_one.join("; ")}}));
    assert_eq!(trained("0,0", &again), (mixed, in_one));
    // what does not fit is refused by name
    let mut other = record.clone();
    other[0].replace_range(..16, "0123456789abcdef");
    for (json, code, words) in [
        (json!({}), 2, "expected a key products in"),
        (json!({"products": "slow"}), 2, "expected 16 hexadecimal digits"),
        (json!({"products": ""}), 1, "in the record of --products, found none"),
        (json!({"products": other.join("; ")}), 1, "expected algorithm 0123456789abcdef of the product"),
    ] {
        write(json);
        let (found, _, told) = run_with("0,0", &again);
        assert!(found == Some(code) && told.contains(words), "{words}: {found:?} {told}");
    }
    let (code, _, told) = run(&mut pipesim(&[]), &format!("{SMALL} --device cpu --products timed"));
    assert!(code == Some(2) && told.contains("--products is for GPUs"), "{told}");
}
