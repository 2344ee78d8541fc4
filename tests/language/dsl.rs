//! The schedule language: what it accepts means what it says, what it refuses it refuses with the place.

use crate::support::{costs, request};
use pipesim::schedules::{LanguageError, Order, order_ops};
use pipesim::{ResolveError, Schedule, Selection, TaskGraph};
use proptest::prelude::*;
use std::fmt::Write as _;

/// What the schedule of this name or path says.
fn order(name: &str, request: &Selection) -> Result<Order, LanguageError> {
    request.order(name).map(|found| found.order).map_err(|e| match e {
        ResolveError::Language(e) => e,
        other => panic!("{other}"),
    })
}

/// Compiles the text as the file `try.star`.
fn compile(text: impl AsRef<[u8]>, request: &Selection) -> Result<Schedule, LanguageError> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("try.star");
    std::fs::write(&path, text).unwrap();
    order(&path.display().to_string(), request).map(|order| order.fixed().unwrap())
}

/// The program of each device, ops separated by spaces.
fn programs(text: &str, p: u32, m: u32) -> Vec<String> {
    let schedule = compile(text, &request(p, m, None)).unwrap();
    schedule.validate().unwrap();
    show(&schedule)
}

fn show(schedule: &Schedule) -> Vec<String> {
    let words = |device| schedule.program(device).iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
    (0..schedule.devices()).map(words).collect()
}

/// Body of `device`, which must be refused as an invalid schedule.
fn refused(body: &str, p: u32, m: u32) -> String {
    let text = format!("def device(r, p, m):\n    return {body}\n");
    refused_file(&text, &request(p, m, None))
}

pub fn refused_file(text: impl AsRef<[u8]>, request: &Selection) -> String {
    match compile(text, request) {
        Err(LanguageError::Invalid(text) | LanguageError::Unsupported(text)) => text,
        other => panic!("expected an invalid schedule, found {other:?}"),
    }
}

fn usage(text: impl AsRef<[u8]>, request: &Selection) -> String {
    match compile(text, request) {
        Err(LanguageError::Usage(text)) => text,
        other => panic!("expected a usage error, found {other:?}"),
    }
}

#[track_caller]
fn says(text: &str, parts: &[&str]) {
    for part in parts {
        assert!(text.contains(part), "expected '{part}' in:\n{text}");
    }
}

#[test]
fn a_wrong_op_is_refused_with_line_op_and_grid() {
    let cases = [
        ("(m - 1) * (F + B)", "0F3 is missing"),
        ("m * F + (m - 1) * B", "0F3 has no backward: neither 0B3 nor 0I3"),
        ("(m + 1) * (F + B)", "0F4 names micro-batch 4, but m = 4"),
        ("F(0) + F(0)", "0F0 runs twice"),
        ("m * F + B(1) + B(1)", "0B1 runs twice"),
        ("B + m * F", "0B0 runs before 0F0"),
        ("I + m * F", "0I0 runs before 0F0"),
        ("F + W + m * (F + I)", "W[0] has no I of its chunk before it without a W"),
        ("F + W(0)", "0W0 has no 0I0 before it"),
        ("m * F + m * I + (m - 1) * W", "0W3 is missing: 0I3 has no backward for its weights"),
        ("m * F + I + B(0)", "0B0 runs after 0I0, which is half of it"),
        ("m * F + B + I(0)", "0I0 runs after 0B0, which includes it"),
        ("m * F + m * I + W + W(0)", "0W0 runs twice"),
        ("m * (F[1] + B)", "F[1] names chunk 1, but a device holds 1 here"),
        ("m * (F[4294967295] + B)", "F[4294967295] names chunk 4294967295"),
        ("F(4)", "0F4 names micro-batch 4, but m = 4"),
        ("F(4294967295)", "0F4294967295 names micro-batch 4294967295, but m = 4"),
        ("1000000 * F", "0F4 names micro-batch 4, but m = 4"),
        ("first(m, 1000000 * F)", "the word continues after"),
        ("concat([])", "0F0 is missing"),
        ("first(m, concat([]))", "0F0 is missing"),
        ("first(m - 1, m * (F + B))", "0F3 is missing"),
    ];
    for (body, what) in cases {
        let text = refused(body, 2, 4);
        says(&text, &["try.star:", "not a schedule for p = 2, m = 4", "device 0, op number", what, "<-- here"]);
        let marked: Vec<&str> = text.lines().filter(|line| line.contains("<-- here")).collect();
        assert!(marked.len() == 1 && marked[0].contains("device   0 |") && marked[0].contains('['), "{body}:\n{text}");
        says(&text, &["device   1 |"]);
    }
}

#[test]
fn a_fault_names_the_line_on_which_the_op_was_written() {
    let text = "def device(r, p, m):\n    good = m * F\n    bad = 2 * W\n    return good + bad\n";
    says(&refused_file(text, &request(2, 4, None)), &["try.star:3: "]);
    let in_a_loop = "def device(r, p, m):\n    w = concat([])\n    for i in range(m):\n        w += F\n        w += B\n    w += F\n    return w\n";
    says(&refused_file(in_a_loop, &request(1, 3, None)), &["try.star:6: ", "0F3 names micro-batch 3, but m = 3"]);
    let only_on_device_2 = "def device(r, p, m):\n    if r == 2:\n        return m * F\n    return m * (F + B)\n";
    says(&refused_file(only_on_device_2, &request(4, 2, None)), &["device 2, op number 2", "2F0 has no backward"]);
}

#[test]
fn an_empty_program_is_not_placed_on_line_0() {
    let text = refused("concat([])", 2, 4);
    assert!(!text.contains("try.star:0"), "{text}");
}

#[test]
fn the_grid_shows_only_the_surroundings_of_the_fault() {
    let text = refused("999 * (F + B) + F(0)", 40, 1000);
    says(&text, &["...", "[end]", "0B998"]);
    assert!(text.lines().count() < 12 && text.lines().all(|line| line.len() < 140), "{text}");
}

/// The wait cycle of a schedule that is valid on every device by itself.
fn cycle(text: &str, p: u32, m: u32) -> String {
    let schedule = compile(text, &request(p, m, None)).unwrap();
    schedule.validate().unwrap();
    TaskGraph::new(schedule).unwrap_err().to_string()
}

#[test]
fn a_cycle_lists_who_waits_for_whom() {
    let text = cycle("def device(r, p, m):\n    return m * (F + B) if r == 0 else m * F + m * B\n", 2, 2);
    says(
        &text,
        &[
            "in a circle",
            "device 0 at op number 1 (0B0) waits for 1B0, which stands later on device 1",
            "device 1 at op number 1 (1F1) waits for 0F1, which stands later on device 0",
            "<-- here",
        ],
    );
    let three = "placement = loop\ndef device(r, p, m, v = 2):\n    return m * (F[1] + F[0]) + m * (B[1] + B[0])\n";
    let three = cycle(three, 3, 1);
    says(&three, &["(3F0) waits for 2F0", "(5F0) waits for 4F0", "(4F0) waits for 3F0"]);
    assert_eq!(three.matches("waits for").count(), 3, "{three}");
}

#[test]
fn a_device_that_waits_for_itself_is_a_cycle_of_one() {
    let text = "placement = loop\ndef device(r, p, m, v = 2):\n    return m * F[1] + m * F[0] + m * (B[1] + B[0])\n";
    let text = cycle(text, 1, 2);
    says(&text, &["device 0 at op number 0 (1F0) waits for 0F0, which stands later on device 0", "[1F0]"]);
    assert_eq!(text.matches("waits for").count(), 1, "{text}");
}

#[test]
fn devices_outside_the_circle_are_not_listed() {
    let text = "def device(r, p, m):\n    return m * F + m * B if r != 2 else m * (F + B)\n";
    let text = cycle(text, 4, 2);
    says(&text, &["device 2 at op number 1 (2B0) waits for 3B0", "device 3 at op number 1 (3F1) waits for 2F1"]);
    assert!(!text.contains("device 0 at") && !text.contains("device 1 at"), "{text}");
}

#[test]
fn files_that_do_not_end_run_out_of_the_budget_that_the_error_names() {
    let mut small = request(2, 4, None);
    small.budget.ticks = 10_000;
    let loops = [
        "def device(r, p, m):\n    x = 0\n    for i in range(1000000000):\n        x += 1\n    return m * (F + B)\n",
        "x = [i for i in range(100000000)]\ndef device(r, p, m):\n    return m * (F + B)\n",
        "def placement(p):\n    for i in range(1000000000):\n        p += 1\n    return linear\ndef device(r, p, m):\n    return m * (F + B)\n",
    ];
    for text in loops {
        says(&refused_file(text, &small), &["try.star", "The budget is 10000 evaluation ticks", "`max-ticks`"]);
    }
    let recursion = "def f(n):\n    return f(n + 1)\ndef device(r, p, m):\n    return f(0)\n";
    says(&refused_file(recursion, &request(2, 4, None)).to_lowercase(), &["try.star:2", "stack"]);
    let memory = "x = []\nfor i in range(40000000):\n    x.append(str(i) * 100)\ndef device(r, p, m):\n    return F\n";
    let mut little = request(2, 4, None);
    little.budget.bytes = 10_000_000;
    says(&refused_file(memory, &little), &["The budget is 10000000 bytes"]);
}

#[test]
fn words_that_are_too_long_or_too_deep_are_refused() {
    let budget = "the word is longer than the budget of 2147483648 ops";
    says(&refused("1000000000000000 * F", 2, 4), &[budget, "try.star:2"]);
    says(&refused("9223372036854775807 * (9223372036854775807 * F)", 2, 4), &[budget]);
    let doubled = "def device(r, p, m):\n    w = F + B\n    for i in range(60):\n        w = w + w\n    return w\n";
    says(&refused_file(doubled, &request(2, 4, None)), &[budget, "try.star:4"]);
    let nested = "def device(r, p, m):\n    w = F\n    for i in range(5000):\n        w = F + w\n    return w\n";
    says(&refused_file(nested, &request(2, 4, None)), &["nested deeper than 1000", "concat(list)", "try.star:4"]);
    let doubled_uncounted =
        "def device(r, p, m):\n    w = first(m, F + B)\n    for i in range(60):\n        w = w + w\n    return w\n";
    says(&refused_file(doubled_uncounted, &request(2, 4, None)), &["continues after", "<-- here"]);
    let huge = refused("10000000000000000000000 * F", 2, 4);
    says(&huge, &["try.star:2"]);
}

#[test]
fn a_schedule_beyond_the_budget_of_ops_is_refused_before_it_is_made() {
    let mut small = request(2, 100, None);
    small.budget.ops = 399;
    says(&refused_file("def device(r, p, m):\n    return m * (F + B)\n", &small), &["budget is 399 ops", "`max-ops`"]);
    small.budget.ops = 400;
    compile("def device(r, p, m):\n    return m * (F + B)\n", &small).unwrap();
    let split = refused_file("def device(r, p, m):\n    return m * (F + I + W)\n", &small);
    says(&split, &["budget of 400 ops"]);
}

#[test]
fn files_that_are_no_schedule_are_refused_with_one_thing_to_do() {
    let four = request(2, 4, None);
    let cases: [(&str, &[&str]); 14] = [
        ("", &["defines no function device", "def device(r, p, m):"]),
        ("x = 1\n", &["defines no function device"]),
        ("device = 3\n", &["device is not a function"]),
        ("def device(r, p):\n    return F\n", &["expected def device(r, p, m, ...), found (r, p)"]),
        ("def device(p, r, m):\n    return F\n", &["found (p, r, m)"]),
        ("def device(*args):\n    return F\n", &["expected def device(r, p, m, ...)"]),
        ("def device(r, p, m):\n    return 3\n", &["to return a word", "found 3"]),
        ("def device(r, p, m):\n    pass\n", &["to return a word", "found None"]),
        ("def device(r, p, m):\n    return [F, B]\n", &["to return a word", "found ["]),
        ("def device(r, p, m)\n    return F\n", &["try.star:1", "Parse error"]),
        ("def device(r, p, m):\n    return mm * (F + B)\n", &["try.star:2", "`mm` not found", "did you mean"]),
        ("def device(r, p, m):\n    return m * (F + 3)\n", &["try.star:2"]),
        ("def device(r, p, m):\n    fail('not today')\n", &["try.star:2", "not today"]),
        ("def device(r, p, m, k):\n    return m * (F + B)\n", &["k"]),
    ];
    for (text, parts) in cases {
        says(&refused_file(text, &four), parts);
        says(&refused_file(text, &four), &["try.star"]);
    }
}

#[test]
fn nothing_outside_can_be_read_or_called() {
    for call in
        ["load('other.star', 'x')\n", "x = open('/etc/passwd')\n", "x = read('f')\n", "import os\n", "x = exec('1')\n"]
    {
        let text = format!("{call}def device(r, p, m):\n    return m * (F + B)\n");
        says(&refused_file(&text, &request(2, 4, None)), &["try.star:1"]);
    }
}

#[test]
fn refusals_state_the_files_own_reason() {
    let text = "def device(r, p, m):\n    require(m % 2 == 0, 'm must be even')\n    return m * (F + B)\n";
    assert_eq!(refused_file(text, &request(2, 3, None)), "try does not exist for p = 2, m = 3: m must be even");
    compile(text, &request(2, 4, None)).unwrap();
}

#[test]
fn slices_of_what_has_no_length_and_strides_are_refused() {
    says(
        &refused("first(m, m * (F + B))[1:]", 2, 4),
        &["the length of first(m, word), recompute(word) and offload(word) is unknown", "try.star:2"],
    );
    says(
        &refused("alternate(first(m, m * F), m * B)", 2, 4),
        &["the length of first(m, word), recompute(word) and offload(word) is unknown"],
    );
    says(&refused("(m * (F + B))[::2]", 2, 4), &["without a stride"]);
    says(&refused("F[-1] + B", 2, 4), &["try.star:2"]);
    says(&refused("F['a'] + B", 2, 4), &["try.star:2"]);
    says(&refused("F(-1) + B", 2, 4), &["try.star:2"]);
}

#[test]
fn paths_that_are_no_schedule_file_are_usage_errors() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).display().to_string();
    std::fs::write(folder.path().join("binary.star"), [0xff, 0xfe, 0x00]).unwrap();
    std::fs::write(folder.path().join("large.star"), vec![b'#'; (1 << 20) + 1]).unwrap();
    std::fs::create_dir(folder.path().join("folder.star")).unwrap();
    for (name, what) in [
        ("none.star", "found none; check the path"),
        ("binary.star", "found invalid UTF-8 on line 1 (UTF-16?); save it as UTF-8"),
        ("folder.star", "found a folder; name a file in it"),
        ("large.star", "found more than 1 MiB"),
    ] {
        match order(&path(name), &request(2, 4, None)) {
            Err(LanguageError::Usage(text)) => says(&text, &["expected a schedule file at", name, what]),
            other => panic!("{name}: {other:?}"),
        }
    }
    for (name, meant) in [("1f1", "1f1b"), ("gpip", "gpipe"), ("zb_v2", "zb-v")] {
        let text = order(name, &request(2, 4, None)).unwrap_err().to_string();
        says(&text, &["no schedule is called", "did you mean ", meant, "; known: naive, gpipe, 1f1b"]);
    }
    // another number is another schedule
    for name in ["something-else-entirely", "Zb-h3"] {
        assert!(!order(name, &request(2, 4, None)).unwrap_err().to_string().contains("did you mean"), "{name}");
    }
}

#[test]
fn placements_are_checked() {
    let with = |placement: &str, p: u32| {
        refused_file(format!("{placement}\ndef device(r, p, m):\n    return m * (F + B)\n"), &request(p, 2, None))
    };
    let same_number = "every device must hold the same number of stages";
    let placements = "expected placement = linear, v_shape, loop, zigzag";
    let cases: [(&str, u32, &[&str]); 7] = [
        ("def placement(p):\n    return custom([0, 0, 1])", 2, &[same_number]),
        ("def placement(p):\n    return custom([0, 5])", 2, &["stage 1 on device 5, but there are 2 devices"]),
        ("def placement(p):\n    return custom([0, 0])", 2, &["same number of stages", "device 1 holds 0"]),
        ("def placement(p):\n    return 3", 2, &[placements, "found 3"]),
        ("def placement(p):\n    return custom([-1, 0])", 2, &["try.star:2"]),
        ("placement = 'V'", 2, &["try.star"]),
        ("placement = custom([1, 0])", 3, &["try.star"]),
    ];
    cases.into_iter().for_each(|(placement, p, parts)| says(&with(placement, p), parts));
    let empty = compile("placement = custom([])\ndef device(r, p, m):\n    return F\n", &request(1, 1, None));
    assert!(empty.is_err(), "{empty:?}");
}

#[test]
fn words_mean_their_op_lists() {
    let body = |body: &str, m: u32| programs(&format!("def device(r, p, m):\n    return {body}\n"), 1, m).remove(0);
    assert_eq!(body("m * F + m * B", 3), "0F0 0F1 0F2 0B0 0B1 0B2");
    assert_eq!(body("alternate(m * F, m * B)", 3), "0F0 0B0 0F1 0B1 0F2 0B2");
    assert_eq!(body("alternate(F, (m - 1) * F) + m * B", 4), "0F0 0F1 0F2 0F3 0B0 0B1 0B2 0B3");
    assert_eq!(body("F + alternate((m - 1) * F, m * B)", 3), "0F0 0F1 0B0 0F2 0B1 0B2");
    assert_eq!(body("(m * F + m * B)[:2] + (m * F + m * B)[2:]", 2), "0F0 0F1 0B0 0B1");
    assert_eq!(body("(m * (F + B))[-2:] + (m * (F + B))[:-2]", 3), "0F0 0B0 0F1 0B1 0F2 0B2");
    assert_eq!(body("(m * (F + B))[-100:100]", 2), "0F0 0B0 0F1 0B1");
    assert_eq!(body("m * (F + B) + (m * F)[5:2] + 0 * F + -3 * F", 1), "0F0 0B0");
    assert_eq!(body("m * F + 2 * I + W + 1 * (I + W) + W", 3), "0F0 0F1 0F2 0I0 0I1 0W0 0I2 0W1 0W2");
    assert_eq!(body("F(1) + F(0) + B(1) + B(0)", 2), "0F1 0F0 0B1 0B0");
    assert_eq!(body("m * F + concat([B[0](m - 1 - i) for i in range(m)])", 3), "0F0 0F1 0F2 0B2 0B1 0B0");
    assert_eq!(body("m * F + I(2) + I(0) + I(1) + W + W(1) + W", 3), "0F0 0F1 0F2 0I2 0I0 0I1 0W2 0W1 0W0");
    assert_eq!(body("first(m, 7 * (F + I) + 7 * W)", 2), "0F0 0I0 0F1 0I1 0W0 0W1");
    assert_eq!(body("first(m, first(7, 9 * (F + B)))", 2), "0F0 0B0 0F1 0B1");
    assert_eq!(body("F + B", 1), "0F0 0B0");
}

#[test]
fn phases_are_named_where_they_stand() {
    let text = "def device(r, p, m):\n    return phase('up', F) + phase('steady', F + phase('inner', B)) + B\n";
    let schedule = compile(text, &request(1, 2, None)).unwrap();
    let phases: Vec<_> = (0..4).map(|index| schedule.phase(0, index)).collect();
    assert_eq!(phases, [Some("up"), Some("steady"), Some("inner"), None]);
}

#[test]
fn options_reach_the_function_with_their_types() {
    let text = "def device(r, p, m, k = 1, late = False, mode = 'plain', cap = 9):\n\
                \x20   require(type(k) == 'int' and type(mode) == 'string', 'types')\n\
                \x20   require(cap == None or cap == 9, 'cap')\n\
                \x20   w = min(k, m)\n\
                \x20   return w * F + (m - w) * (F + B) + w * B if late and mode == 'wild' else m * (F + B)\n";
    let mut set = request(1, 3, None);
    assert_eq!(show(&compile(text, &set).unwrap()), ["0F0 0B0 0F1 0B1 0F2 0B2"]);
    for (key, value) in [("k", "2"), ("late", "True"), ("mode", "wild"), ("cap", "None")] {
        set.options.insert(key.to_string(), value.to_string());
    }
    assert_eq!(show(&compile(text, &set).unwrap()), ["0F0 0F1 0F2 0B0 0B1 0B2"]);
    set.options.insert("colour".to_string(), "red".to_string());
    says(&usage(text, &set), &["try has no option 'colour'; it has k, late, mode, cap"]);
}

#[test]
fn chunks_reach_function_and_placement_or_are_refused() {
    let text = "placement = loop\ndef device(r, p, m, v = 2):\n    return concat([m * F[c] for c in range(v)]) + concat([m * B[v - 1 - c] for c in range(v)])\n";
    let mut three = request(2, 1, None);
    assert_eq!(show(&compile(text, &three).unwrap())[1], "1F0 3F0 3B0 1B0");
    three.chunks = Some(3);
    assert_eq!(show(&compile(text, &three).unwrap())[0], "0F0 2F0 4F0 4B0 2B0 0B0");
    says(
        &usage("def device(r, p, m):\n    return m * (F + B)\n", &three),
        &["try has 1 stage per device, but 3 were requested"],
    );
    let mut by_option = request(2, 1, None);
    by_option.options.insert("v".to_string(), "3".to_string());
    let set = compile(text, &by_option);
    assert!(
        matches!(&set, Err(LanguageError::Usage(_))) || set.is_ok_and(|s| s.placement.chunks() == 3),
        "v = 3 is neither"
    );
}

#[test]
fn custom_placements_place() {
    let text = "def placement(p):\n    return custom([1, 0, 0, 1])\ndef device(r, p, m):\n    return m * (F[0] + F[1] + B[1] + B[0])\n";
    assert_eq!(programs(text, 2, 1), ["1F0 2F0 2B0 1B0", "0F0 3F0 3B0 0B0"]);
}

#[test]
fn other_words_for_an_embedded_schedule_give_the_same_ops() {
    let one_by_one = "def device(r, p, m):\n    w, f, b = [], 0, 0\n    for i in range(2 * m):\n        if f < m and f - b < p - r:\n            w.append(F(f))\n            f += 1\n        else:\n            w.append(B(b))\n            b += 1\n    return concat(w)\n";
    for (p, m) in [(1, 1), (1, 5), (2, 1), (3, 2), (4, 8), (5, 5), (4, 17)] {
        let theirs = order("1f1b", &request(p, m, None)).unwrap().fixed().unwrap();
        assert_eq!(programs(one_by_one, p, m), show(&theirs), "p = {p}, m = {m}");
    }
}

/// One step of a random file: makes a new word from earlier ones, whose numbers are taken modulo how many there are.
#[derive(Clone, Debug)]
enum Step {
    Op(usize),
    Add(usize, usize),
    Times(usize, i64),
    Slice(usize, Option<i64>, Option<i64>),
    Alternate(usize, usize),
    Phase(usize, usize),
    Concat(Vec<usize>),
}

const CHUNKS: usize = 3;
/// A word as a plain list of chunk and phase.
type Plain = Vec<(usize, String)>;

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let (any, bound) = (0..64_usize, proptest::option::of(-30..60_i64));
    let step = prop_oneof![
        3 => (0..CHUNKS).prop_map(Step::Op),
        4 => (any.clone(), any.clone()).prop_map(|(a, b)| Step::Add(a, b)),
        2 => (any.clone(), -1..5_i64).prop_map(|(a, n)| Step::Times(a, n)),
        2 => (any.clone(), bound.clone(), bound).prop_map(|(a, from, to)| Step::Slice(a, from, to)),
        2 => (any.clone(), any.clone()).prop_map(|(a, b)| Step::Alternate(a, b)),
        1 => (any.clone(), any.clone()).prop_map(|(a, n)| Step::Phase(a, n % 3)),
        1 => proptest::collection::vec(any, 0..5).prop_map(Step::Concat),
    ];
    proptest::collection::vec(step, 1..40)
}

/// What the step means for plain lists, and its text in the language.
fn apply(step: &Step, words: &[Plain]) -> (Plain, String) {
    let at = |i: &usize| i % words.len();
    let clamp =
        |bound: i64, len: usize| (if bound < 0 { bound + len as i64 } else { bound }).clamp(0, len as i64) as usize;
    let side = |bound: &Option<i64>| bound.map_or_else(String::new, |bound| bound.to_string());
    match step {
        Step::Op(chunk) => (vec![(*chunk, String::new())], format!("1 * F[{chunk}]")),
        Step::Add(a, b) => ([&words[at(a)][..], &words[at(b)]].concat(), format!("w{} + w{}", at(a), at(b))),
        Step::Times(a, n) => (vec![words[at(a)].clone(); (*n).max(0) as usize].concat(), format!("{n} * w{}", at(a))),
        Step::Slice(a, from, to) => {
            let word = &words[at(a)];
            let (start, end) = (clamp(from.unwrap_or(0), word.len()), clamp(to.unwrap_or(i64::MAX), word.len()));
            (word[start..end.max(start)].to_vec(), format!("w{}[{}:{}]", at(a), side(from), side(to)))
        }
        Step::Alternate(a, b) => {
            let (x, y) = (&words[at(a)], &words[at(b)]);
            let turns = (0..x.len().max(y.len())).flat_map(|i| x.get(i).into_iter().chain(y.get(i))).cloned();
            (turns.collect(), format!("alternate(w{}, w{})", at(a), at(b)))
        }
        Step::Phase(a, n) => {
            let named = |(chunk, phase): &(usize, String)| {
                (*chunk, if phase.is_empty() { format!("p{n}") } else { phase.clone() })
            };
            (words[at(a)].iter().map(named).collect(), format!("phase('p{n}', w{})", at(a)))
        }
        Step::Concat(list) => {
            let names: Vec<String> = list.iter().map(|i| format!("w{}", at(i))).collect();
            (list.iter().flat_map(|i| words[at(i)].clone()).collect(), format!("concat([{}])", names.join(", ")))
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    /// All words are made in one file, so that words that share their parts cannot disturb each other unnoticed.
    #[test]
    fn random_words_are_what_plain_lists_are(steps in steps(), last in 0..64_usize, limit in 1..20_u32) {
        let mut words: Vec<Plain> = vec![vec![(0, String::new())]];
        let mut text = "placement = loop\ndef device(r, p, m, v = 3):\n    w0 = 1 * F[0]\n".to_string();
        for step in &steps {
            let (word, expression) = apply(step, &words);
            if word.len() <= 120 {
                writeln!(text, "    w{} = {expression}", words.len()).unwrap();
                words.push(word);
            }
        }
        let chosen = last % words.len();
        let word = &words[chosen];
        let count = |chunk: usize| word.iter().filter(|(c, _)| *c == chunk).count();
        let most = (0..CHUNKS).map(count).max().unwrap().max(1);
        let rest = |c: usize| format!("{} * F[{c}] + {most} * B[{c}]", most - count(c));
        writeln!(text, "    return first(m, w{chosen} + {})", (0..CHUNKS).map(rest).collect::<Vec<_>>().join(" + ")).unwrap();
        let m = limit.min(most as u32);
        let schedule = compile(&text, &request(1, m, None)).unwrap();
        let mut counters = [0; CHUNKS];
        let mut expected = Vec::new();
        for (chunk, phase) in word {
            if counters[*chunk] < m {
                expected.push((format!("{chunk}F{}", counters[*chunk]), phase.clone()));
            }
            counters[*chunk] += 1;
        }
        let found = schedule.program(0).iter().enumerate();
        let found = found.map(|(i, op)| (op.to_string(), schedule.phase(0, i).unwrap_or("").to_string()));
        prop_assert_eq!(found.take(expected.len()).collect::<Vec<_>>(), expected, "{}", text);
    }
}

/// What a file says, settled at unit costs.
fn settled(text: &str, p: u32, m: u32) -> Result<Vec<String>, String> {
    let order = request(p, m, None).order_of_text("try", text).map_err(|e| e.to_string())?.order;
    let Order::Open(open) = order else { panic!("expected an order that costs settle") };
    let schedule = order_ops(&open, &costs("", &open.placement, m)).map_err(|e| e.to_string())?;
    schedule.validate().unwrap();
    Ok(show(&schedule))
}

#[test]
fn two_directions_have_chunks_of_their_own() {
    let text = "placement = bidirectional\ndef device(r, p, m):\n    near = [0, 1] if 2 * r < p else [1, 0]\n    return concat([F[c] for c in near]) + concat([B[c] for c in reversed(near)])\n";
    // chunk 0 is direction 0 (micro-batch 0), chunk 1 direction 1 (micro-batch 1)
    assert_eq!(programs(text, 2, 2), ["0F0 1F1 1B1 0B0", "0F1 1F0 1B0 0B1"]);
    let odd = refused_file(text, &request(3, 2, None));
    says(&odd, &["does not exist for p = 3, m = 2", "even number of devices"]);
    let wrong = "placement = bidirectional\ndef device(r, p, m):\n    return m * (F[0] + B[0])\n";
    says(&refused_file(wrong, &request(2, 4, None)), &["other direction", "0 to 1"]);
}

#[test]
fn overlapped_pairs_are_a_forward_and_a_backward_of_different_micro_batches() {
    let text = "def device(r, p, m):\n    return F + (m - 1) * overlap(F, B) + B\n";
    let schedule = compile(text, &request(1, 3, None)).unwrap();
    let pairs: Vec<bool> = schedule.program(0).iter().map(|op| op.opens_pair()).collect();
    assert_eq!(
        (show(&schedule), pairs),
        (vec!["0F0 0F1 0B0 0F2 0B1 0B2".to_string()], vec![false, true, false, true, false, false])
    );
    says(
        &refused("m * overlap(F, B)", 1, 2),
        &["the backward needs the forward of its own pair", "lengthen the warm-up by one"],
    );
    says(&refused("overlap(F, F)", 1, 2), &["which is a forward and an I or B"]);
    says(&refused("overlap(F + B, B)", 1, 2), &["two single ops"]);
    says(&refused("(F + overlap(F, B))[:2] + F + 3 * B", 1, 3), &["is not an overlapped pair"]);
    // what `first` cuts off leaves the other op alone
    let cut =
        compile("def device(r, p, m):\n    return first(m, F + 3 * overlap(F, B))\n", &request(1, 3, None)).unwrap();
    assert_eq!(show(&cut), ["0F0 0F1 0B0 0F2 0B1 0B2"]);
    assert!(!cut.program(0)[5].opens_pair());
}

#[test]
fn weights_float_into_gaps_lists_are_scheduled_and_orders_searched() {
    let fill = "def device(r, p, m):\n    w = min(p - 1 - r, m)\n    return fill(w * F + (m - w) * (F + I) + w * I, W, cap = p)\n";
    // 1F1B's order of F and I with the W's in the gaps: device 1 of 2 never waits after its first F
    assert_eq!(settled(fill, 2, 2).unwrap(), ["0F0 0F1 0I0 0W0 0I1 0W1", "1F0 1I0 1F1 1I1 1W0 1W1"]);
    let greedy = "def device(r, p, m):\n    return greedy([B, F], cap = 1)\n";
    assert_eq!(settled(greedy, 2, 2).unwrap(), ["0F0 0B0 0F1 0B1", "1F0 1B0 1F1 1B1"]);
    let search = "def device(r, p, m):\n    return search(cap = 2, goal = \"span\")\n";
    assert_eq!(settled(search, 1, 2).unwrap().len(), 1);
    let tight = "def device(r, p, m):\n    return fill(m * F + m * I, W, cap = 2)\n";
    says(&settled(tight, 1, 4).unwrap_err(), &["may hold 2 activations", "needs 4"]);
    let mixed = "def device(r, p, m):\n    return search() if r else m * (F + B)\n";
    says(&settled(mixed, 2, 2).unwrap_err(), &["use the same search for all devices"]);
    for (body, part) in [
        ("fill(m * (F + I), F)", "only W and R can float"),
        ("fill(3, W)", "expected fill(word, W)"),
        ("greedy([F, W])", "a priority of F and B, or of F, I and W"),
        ("greedy([B, F], cap = 0)", "a cap of activations above 0"),
        ("search(goal = \"speed\")", "expected goal"),
        ("search(start = 3)", "expected start"),
        ("fill(m * F, W)", "has no backward"),
        ("fill(m * (F + I + I), W)", "0I1 runs before 0F1"),
    ] {
        says(&refused(body, 1, 2), &[part]);
    }
}
