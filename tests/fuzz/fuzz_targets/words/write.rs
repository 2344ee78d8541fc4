//! Trees as the text of a schedule file.

use super::grammar::{Atom, Body, File, Layout, Number, PHASES, Statement, Value, Word};
use pipesim::Selection;

pub fn file(file: &File) -> String {
    let chunks = |name: &str, chunks: &Option<u32>| match chunks {
        Some(chunks) => format!("placement = {name}({chunks})\n"),
        None => format!("placement = {name}\n"),
    };
    let mut text = match &file.layout {
        Layout::Unsaid => String::new(),
        Layout::Linear => "placement = linear\n".to_string(),
        Layout::Loop(v) => chunks("loop", v),
        Layout::V => "placement = v_shape\n".to_string(),
        Layout::Zigzag(v) => chunks("zigzag", v),
        Layout::Bidirectional(v) => chunks("bidirectional", v),
        Layout::Custom(false, list) => format!("placement = custom({list:?})\n"),
        Layout::Custom(true, list) => format!("def placement(p):\n    return custom({list:?})\n"),
    };
    text += "def device(r, p, m):\n";
    match &file.bodies[..] {
        [one] => text += &body(one, "    "),
        each => {
            for (device, one) in each.iter().enumerate() {
                text += &format!("    if r == {device}:\n{}", body(one, "        "));
            }
        }
    }
    text
}

fn body(body: &Body, indent: &str) -> String {
    let mut text = String::new();
    for statement in &body.statements {
        text += &match statement {
            Statement::Set(variable, value) => format!("{indent}x{variable} = {}\n", word(value)),
            Statement::Append(variable, value) => format!("{indent}x{variable} += {}\n", word(value)),
            Statement::Loop(count, variable, value) => {
                format!("{indent}for _ in range({}):\n{indent}    x{variable} += {}\n", number(count), word(value))
            }
        };
    }
    text + &format!("{indent}return {}\n", value(&body.value))
}

fn value(value: &Value) -> String {
    let cap = |cap: &Option<u8>| cap.map_or_else(String::new, |cap| format!(", cap = {}", f64::from(cap) / 2.0));
    match value {
        Value::Word(one) => word(one),
        Value::Fill(one, most) => format!("fill({}, W{})", word(one), cap(most)),
        Value::Greedy(true, most) => format!("greedy([I, F, W]{})", cap(most)),
        Value::Greedy(false, most) => format!("greedy([B, F]{})", cap(most)),
        Value::Search { split, span, cap: most, start } => {
            let (split, goal) = (if *split { "True" } else { "False" }, if *span { "span" } else { "makespan" });
            let start = start.as_ref().map_or_else(String::new, |start| format!(", start = {}", word(start)));
            format!("search(split = {split}, goal = \"{goal}\"{}{start})", cap(most))
        }
    }
}

fn number(one: &Number) -> String {
    match one {
        Number::Plain(n) => n.to_string(),
        Number::R => "r".to_string(),
        Number::P => "p".to_string(),
        Number::M => "m".to_string(),
        Number::Add(a, b) => format!("({} + {})", number(a), number(b)),
        Number::Sub(a, b) => format!("({} - {})", number(a), number(b)),
        Number::Min(a, b) => format!("min({}, {})", number(a), number(b)),
        Number::Max(a, b) => format!("max({}, {})", number(a), number(b)),
    }
}

fn atom(Atom { kind, chunk, microbatch }: &Atom) -> String {
    let chunk = if *chunk == 0 { String::new() } else { format!("[{chunk}]") };
    let microbatch = microbatch.as_ref().map_or_else(String::new, |n| format!("({})", number(n)));
    format!("{}{chunk}{microbatch}", kind.letter())
}

fn word(one: &Word) -> String {
    match one {
        Word::Op(op) => atom(op),
        Word::Variable(variable) => format!("x{variable}"),
        Word::Add(a, b) => format!("({} + {})", word(a), word(b)),
        Word::Times(true, n, a) => format!("({} * {})", number(n), word(a)),
        Word::Times(false, n, a) => format!("({} * {})", word(a), number(n)),
        Word::Concat(list) => format!("concat([{}])", list.iter().map(word).collect::<Vec<_>>().join(", ")),
        Word::Alternate(a, b) => format!("alternate({}, {})", word(a), word(b)),
        Word::Overlap(a, b) => format!("overlap({}, {})", atom(a), atom(b)),
        Word::First(n, a) => format!("first({}, {})", number(n), word(a)),
        Word::Phase(name, a) => format!("phase(\"{}\", {})", PHASES[*name], word(a)),
        Word::Slice(a, from, to) => {
            let bound = |n: &Option<Number>| n.as_ref().map(number).unwrap_or_default();
            format!("({})[{}:{}]", word(a), bound(from), bound(to))
        }
        Word::If(a, b, x, y) => format!("({} if {} < {} else {})", word(x), number(a), number(b), word(y)),
    }
}

/// An input of `language` from its parts.
pub fn input(request: &Selection, text: &str) -> String {
    let digit = |n: u32| char::from(b'0' + n as u8);
    let [p, m, v] = [request.devices, request.microbatches, request.chunks.unwrap_or(0)].map(digit);
    format!("{p}{m}{v}\n{text}")
}
