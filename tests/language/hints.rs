//! What people write who know Python, and the one line that says what to write.

use crate::dsl::refused_file;
use crate::support::request;

/// Statements of a device, and part of the last line of the error.
const CASES: [(&str, &str); 36] = [
    ("return (m / 2) * F + m * B", "Write // for /, as in (m // 2) * F"),
    ("m /= 2\n    return m * (F + B)", "Write // for /"),
    ("return 1.5 * F + B", "Write a whole number, as in 2 * F"),
    ("i = 0\n    while i < m:\n        i += 1\n    return m * (F + B)", "Write for i in range(n):"),
    ("for i in range(m):\n        yield F", "return concat(ops)"),
    ("return m * [F, B]", "return concat(list)"),
    ("return [F] * m + [B] * m", "return concat(list)"),
    ("return m * F + [B]", "Write concat(list) to make a word of a list"),
    ("return m * F + 1", "Write words on both sides"),
    ("return m * F - B", "Write word[:n] for the first n ops"),
    ("return (m * F) / 2", "Write word[:len(word) // 2]"),
    ("return F * B", "Write m * (F + B)"),
    ("return concat(F, B)", "Write concat([F, B]), with one list of words"),
    ("return concat([F, 3])", "Write concat([F, B])"),
    ("return phase(m * F, 'x') + m * B", "Write phase(\"name\", word), the name first"),
    ("try:\n        return F\n    except:\n        return B", "Write if with a condition"),
    ("raise ValueError('x')", "Write require(condition, \"reason\")"),
    ("assert m > 0\n    return m * (F + B)", "Write require(condition, \"reason\")"),
    ("with open('x') as f:\n        pass", "a schedule opens nothing"),
    ("if r is None:\n        pass\n    return m * (F + B)", "Write == and !="),
    ("del r\n    return m * (F + B)", "Write a new list"),
    ("global n\n    return m * (F + B)", "Write return with the new value"),
    ("return 2**m * (F + B)", "Write 1 << n for 2**n"),
    ("if (n := m) > 1:\n        pass", "Write the assignment on a line of its own"),
    ("if 0 < r < p:\n        pass", "Write 0 < r and r < p"),
    ("return concat(F for i in range(m))", "Write a list in the brackets: concat([F for i in range(m)])"),
    ("return sum([F, B])", "Write concat(words) for a list of words"),
    ("print(r)\n    return m * (F + B)", "Write fail(text) to stop and show a value"),
    ("return math.ceil(m / 2) * F", "-(-a // b) to round up"),
    ("return 3F + 3B", "Write 3 * F."),
    ("return 1__2 * F + m * B", "Write the number without _, as in 12."),
    ("return m * f + m * b", "Write ops in capital letters: F, B, I and W"),
    ("return 'F' + 'B'", "write F and B without quotes"),
    ("m * (F + B)", "write return before the word"),
    ("x = {1, 2}\n    return m * (F + B)", "Write a list, [1, 2]; sets are not there"),
    ("match r:\n        case 0:\n            return F", "Write if and elif"),
];

fn last_line(text: &str) -> String {
    let error = refused_file(text, &request(2, 4, None));
    assert!(!error.contains("<builtin>") && !error.contains("Traceback"), "{error}");
    error.lines().last().unwrap_or_default().to_string()
}

#[test]
fn pythons_statements_are_refused_with_what_to_write() {
    for (body, write) in CASES {
        let line = last_line(&format!("def device(r, p, m):\n    {body}\n"));
        assert!(line.contains(write), "{body}: {line}");
    }
}

#[test]
fn files_that_begin_as_pythons_are_refused_with_what_to_write() {
    let rest = "def device(r, p, m):\n    return m * (F + B)\n";
    for (first, write) in [
        ("import math\n", "Write everything in this file"),
        ("from math import ceil\n", "Write everything in this file"),
        ("class A:\n    pass\n", "Write functions, and a dict for fields"),
        ("@schedule\n", "Write the function without @"),
        ("async ", "Write def without async"),
    ] {
        let line = last_line(&format!("{first}{rest}"));
        assert!(line.contains(write), "{first}: {line}");
    }
    let annotated = last_line("def device(r: int, p: int, m: int):\n    return m * (F + B)\n");
    assert!(annotated.contains("Write parameters without types"), "{annotated}");
    let open = last_line("def device(r, p, m)\n    return m * (F + B)\n");
    assert!(open.contains("Write ':' at the end of the line"), "{open}");
    let tabs = last_line("def device(r, p, m):\n\treturn m * (F + B)\n");
    assert!(tabs.contains("Write spaces to indent"), "{tabs}");
}

/// A bracket that nothing closes is reported where it is, not at the end of the file.
#[test]
fn open_brackets_and_chunks_that_are_not_there_have_their_place() {
    for (body, place) in [
        ("return m * (F + B", "try.star:2:16: expected a ) that closes"),
        ("x = [F, \"(\"] # (\n    return concat([F, B]", "try.star:3:18: expected a ) that closes"),
    ] {
        let error = refused_file(format!("def device(r, p, m):\n    {body}\n"), &request(2, 4, None));
        assert!(error.contains(place), "{body}: {error}");
    }
    let error = refused_file("def device(r, p, m):\n    return F[1] * m + B\n", &request(2, 4, None));
    assert!(error.contains("F[1] names chunk 1") && error.contains("write F, or a placement"), "{error}");
}

#[test]
fn calls_of_the_files_own_functions_are_still_listed() {
    let text = "def half(m):\n    return (m / 2) * F\ndef device(r, p, m):\n    return half(m)\n";
    let error = refused_file(text, &request(2, 4, None));
    assert!(error.contains("Called from:\n  * ") && error.contains("try.star:4, in device"), "{error}");
    assert!(!error.contains("<builtin>"), "{error}");
}
