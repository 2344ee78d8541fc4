//! What to write instead of Python that the schedule language does not have.

/// Statements and operators that Starlark reserves or lacks, and what to write.
const KEYWORDS: [(&str, &str); 18] = [
    ("while", "for i in range(n): with break; a schedule has as many ops as p and m say"),
    ("yield", "ops = [], ops.append(F) in the loop, and return concat(ops)"),
    ("await", "plain calls; a schedule only lists ops"),
    ("async", "def without async; a schedule only lists ops"),
    ("try", "if with a condition, and require(condition, \"reason\") to reject p and m"),
    ("except", "if with a condition, and require(condition, \"reason\") to reject p and m"),
    ("finally", "the statements without finally"),
    ("raise", "require(condition, \"reason\"), which rejects p and m unless the condition holds"),
    ("assert", "require(condition, \"reason\")"),
    ("class", "functions, and a dict for fields: {\"warmup\": 3}"),
    ("import", "everything in this file; min, max, abs, len, range and sorted are there without import"),
    ("from", "everything in this file; min, max, abs, len, range and sorted are there without import"),
    ("with", "everything in this file; a schedule opens nothing"),
    ("is", "== and !=, as in x == None"),
    ("global", "return with the new value; a function does not change names outside"),
    ("nonlocal", "return with the new value; a function does not change names outside"),
    ("del", "a new list without it: [x for x in list if x != old], or list.pop(i)"),
    ("as", "another name; `as` is reserved"),
];

/// Names of Python's that the language does not have, and what to write.
const NAMES: [(&[&str], &str); 9] = [
    (&["sum"], "concat(words) for a list of words; add numbers in a loop"),
    (&["print"], "fail(text) to stop and show a value; a schedule prints nothing"),
    (
        &["math", "ceil", "floor", "round", "numpy", "np", "torch", "itertools"],
        "a // b to round down, -(-a // b) to round up; libraries are not there",
    ),
    (&["map", "filter"], "[f(x) for x in list if condition]"),
    (&["f", "b", "w"], "ops in capital letters: F, B, I and W, as in m * F"),
    (&["isinstance"], "type(x) == \"int\""),
    (&["pow"], "1 << n for 2**n, or multiply in a loop"),
    (&["divmod"], "a // b and a % b"),
    (
        &["rank", "num_microbatches", "num_stages", "stage"],
        "r for the device, p for the devices, m for the micro-batches",
    ),
];

/// Parts of a message of Starlark's, parts of the line that it is about, and what to write.
const MESSAGES: [(&str, &str, &str); 18] = [
    ("annotations are not allowed", "", "parameters without types, as in def device(r, p, m)"),
    ("keyword-only-arguments", "", "parameters without *, as in def device(r, p, m, v = 2)"),
    ("tabs are not allowed", "", "spaces to indent"),
    ("comparisons are not associative", "", "0 < r and r < p"),
    ("symbol '**'", "", "1 << n for 2**n, or multiply in a loop"),
    ("Parse error", ":=", "the assignment on a line of its own"),
    ("keyword 'for', expected symbol ')'", "", "a list in the brackets: concat([F for i in range(m)])"),
    ("symbol '&'", "", "and"),
    ("symbol '|'", "", "or"),
    ("keyword 'else', expected", "", "if and else with the same indentation; a loop has no else"),
    ("invalid input `@`", "", "the function without @"),
    ("invalid input `!`", "", "not x, or x != y"),
    ("unexpected new line, expected symbol ':'", "", "':' at the end of the line"),
    ("unexpected new line, expected expression", "++", "i += 1"),
    ("unexpected new line, expected expression", "--", "i -= 1"),
    ("expected new line", "function ", "def device(r, p, m) and a colon, and the lines below it indented"),
    ("expected new line", "match ", "if and elif"),
    ("expected symbol ':'", "{", "a list, [1, 2]; sets are not there"),
];

/// Returns what to write, for a message of Starlark's and the line that it is about.
pub(super) fn hint(message: &str, line: &str) -> Option<String> {
    let fits = |(part, of_line, _): &&(&str, &str, &str)| message.contains(*part) && line.contains(*of_line);
    let found = keyword(message)
        .or_else(|| missing(message))
        .or_else(|| operation(message, line))
        .or_else(|| call(message, line))
        .or_else(|| MESSAGES.iter().find(fits).map(|(.., write)| *write));
    let number = || number_before_op(message, line);
    found.map(str::to_string).or_else(number).map(|write| format!("Write {write}."))
}

/// Returns a message without Starlark's guess at a name, if the name is one of Python's that is known here.
pub(super) fn without_guess(text: &str) -> String {
    match text.find(", did you mean `") {
        Some(from) if missing(text).is_some() => {
            let to = text[from..].find('?').map_or(text.len(), |length| from + length + 1);
            format!("{}{}", &text[..from], &text[to..])
        }
        _ => text.to_string(),
    }
}

fn keyword(message: &str) -> Option<&'static str> {
    let word = message.split_once("reserved keyword ")?.1.split_whitespace().next()?;
    let word = word.trim_matches(|c: char| !c.is_ascii_alphabetic());
    KEYWORDS.iter().find(|(name, _)| *name == word).map(|(_, write)| *write)
}

fn missing(message: &str) -> Option<&'static str> {
    let (before, _) = message.split_once("` not found")?;
    let name = before.rsplit('`').next()?;
    NAMES.iter().find(|(names, _)| names.contains(&name)).map(|(_, write)| *write)
}

/// What to write for an operator that does not take these types.
fn operation(message: &str, line: &str) -> Option<&'static str> {
    let rest = message.split_once("Operation `")?.1;
    let operator = rest.split('`').next()?;
    let types: Vec<&str> = rest.split('`').skip(2).step_by(2).collect();
    let has = |kind: &str| types.contains(&kind);
    let words = types.iter().filter(|kind| matches!(**kind, "word" | "op")).count();
    match operator {
        "*" if has("float") && (line.contains('/') || !line.contains('.')) => {
            Some("// for /, as in (m // 2) * F; ops are counted in whole numbers")
        }
        "*" if has("float") => Some("a whole number, as in 2 * F; ops are counted in whole numbers"),
        "*" if words == 2 => Some("m * (F + B); a word is repeated by a whole number"),
        "*" if words == 1 && (has("list") || has("tuple")) => {
            Some("concat(list) to make a word of a list, then m * word")
        }
        "+" | "+=" if words >= 1 && has("list") => Some("concat(list) to make a word of a list, then add"),
        "+" | "+=" if words >= 1 => Some("words on both sides, as in m * F + B"),
        "-" | "-=" if words >= 1 => Some("word[:n] for the first n ops; nothing is subtracted from a word"),
        "/" | "//" | "/=" | "//=" if words >= 1 => Some("word[:len(word) // 2] for half of a word"),
        _ => None,
    }
}

/// What to write for a call with wrong arguments; the first of the functions on the line counts.
fn call(message: &str, line: &str) -> Option<&'static str> {
    if !message.contains("of parameter `") && !message.contains("positional arguments") {
        return None;
    }
    let calls = [
        ("concat(", "concat([F, B]), with one list of words"),
        ("phase(", "phase(\"name\", word), the name first"),
        ("overlap(", "overlap(F, B), with two words"),
        ("alternate(", "alternate(F, B), with two words"),
        ("first(", "first(m, word), the number first"),
        ("custom(", "custom([0, 1, 1, 0]), with the device of each stage"),
    ];
    let found = calls.iter().filter_map(|(call, write)| Some((line.find(call)?, *write)));
    found.min().map(|(_, write)| write)
}

/// What to write for `3F`.
fn number_before_op(message: &str, line: &str) -> Option<String> {
    let letter = message.split_once("unexpected identifier '")?.1.split('\'').next()?;
    let (before, _) = line.split_once(letter)?;
    let digits = before.rsplit(|c: char| !c.is_ascii_digit()).next().filter(|digits| !digits.is_empty())?;
    let rest = letter.replace('_', "");
    if letter.starts_with('_') && rest.bytes().all(|byte| byte.is_ascii_digit()) {
        return Some(format!("the number without _, as in {digits}{rest}"));
    }
    Some(format!("{digits} * {letter}"))
}

/// Returns the line and column of the first bracket that nothing closes, and what would, if an error is about the end of the file.
pub(super) fn unclosed(message: &str, text: &str) -> Option<(usize, usize, char)> {
    let is_of_end = message.contains("unexpected new line, expected") || message.contains("unexpected end of file");
    if !is_of_end {
        return None;
    }
    let mut open: Vec<(usize, usize, char)> = Vec::new();
    let mut is_documentation = false;
    // other texts end in their line
    for (number, line) in text.lines().enumerate() {
        let mut quote = None;
        let toggles = line.matches("\"\"\"").count() % 2 == 1;
        is_documentation ^= toggles;
        if is_documentation || toggles {
            continue;
        }
        for (column, c) in line.chars().enumerate() {
            match (quote, c) {
                (None, '#') => break,
                (None, '"' | '\'') => quote = Some(c),
                (Some(mark), _) if mark == c => quote = None,
                (Some(_), _) => {}
                (None, '(') => open.push((number + 1, column + 1, ')')),
                (None, '[') => open.push((number + 1, column + 1, ']')),
                (None, '{') => open.push((number + 1, column + 1, '}')),
                (None, ')' | ']' | '}') => drop(open.pop()),
                (None, _) => {}
            }
        }
    }
    open.last().copied()
}

/// Returns what to return in place of a value that is no word.
pub(super) fn returned(kind: &str) -> &'static str {
    match kind {
        "list" | "tuple" => "return concat(list)",
        "NoneType" => "write return before the word",
        "string" => "write F and B without quotes",
        "function" | "native_function" => "call the function",
        _ => "return a word such as m * (F + B)",
    }
}

/// Returns an error of Starlark's without the frames that say nothing: the program's own, and the one that the error is about.
pub(super) fn without_builtin(text: &str) -> String {
    let Some(rest) = text.strip_prefix("Traceback (most recent call last):\n") else { return text.to_string() };
    let lines: Vec<&str> = rest.lines().filter(|line| *line != "  File <builtin>, in <module>").collect();
    let place = lines.iter().find_map(|line| line.trim_start().strip_prefix("--> ")?.rsplit_once(':'));
    let place = place.map(|(line, _)| format!("  * {line}, in"));
    // a frame is its place, and the line of the file
    let frames = lines.iter().take_while(|line| line.starts_with("  ")).count();
    let (frames, error) = lines.split_at(frames);
    let others = frames.chunks(2).filter(|frame| !place.as_ref().is_some_and(|place| frame[0].starts_with(place)));
    let calls: Vec<&str> = others.flatten().copied().collect();
    if calls.is_empty() {
        error.join("\n")
    } else {
        format!("Called from:\n{}\n{}", calls.join("\n"), error.join("\n"))
    }
}
