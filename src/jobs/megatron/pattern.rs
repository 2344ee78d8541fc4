//! The small languages of Megatron's options: lists of layers, layouts of a pipeline and patterns of hybrid models.

use std::iter::Peekable;
use std::str::Chars;

/// Most layers of a pattern.
const MOST: usize = 10_000;
/// Deepest nesting of a pattern.
const DEEPEST: usize = 16;

/// Evaluates a list expression as of `--moe-layer-freq`: `([0]*3+[1]*58)`; `None` if it is none.
pub(super) fn layers(text: &str) -> Option<Vec<u32>> {
    let mut rest: Vec<char> = text.chars().filter(|c| !c.is_whitespace()).rev().collect();
    let all = sum(&mut rest, DEEPEST)?;
    rest.is_empty().then_some(all)
}

fn sum(rest: &mut Vec<char>, deepest: usize) -> Option<Vec<u32>> {
    let mut all = product(rest, deepest)?;
    while rest.pop_if(|c| *c == '+').is_some() {
        all.extend(product(rest, deepest)?);
        (all.len() <= MOST).then_some(())?;
    }
    Some(all)
}

fn product(rest: &mut Vec<char>, deepest: usize) -> Option<Vec<u32>> {
    let mut all = list(rest, deepest.checked_sub(1)?)?;
    while rest.pop_if(|c| *c == '*').is_some() {
        let times = number(rest)? as usize;
        (all.len().checked_mul(times)? <= MOST).then_some(())?;
        all = all.repeat(times);
    }
    Some(all)
}

/// Reads a list in brackets or an expression in parentheses, also after a number that multiplies it.
fn list(rest: &mut Vec<char>, deepest: usize) -> Option<Vec<u32>> {
    match rest.pop()? {
        '(' => {
            let all = sum(rest, deepest)?;
            (rest.pop()? == ')').then_some(all)
        }
        '[' => {
            let mut all = Vec::new();
            loop {
                match rest.last()? {
                    ']' => return rest.pop().map(|_| all),
                    ',' => drop(rest.pop()),
                    _ => all.push(number(rest)?),
                }
            }
        }
        first => {
            rest.push(first);
            let times = number(rest)? as usize;
            (rest.pop()? == '*').then_some(())?;
            let all = list(rest, deepest.checked_sub(1)?)?;
            (all.len().checked_mul(times)? <= MOST).then(|| all.repeat(times))
        }
    }
}

fn number(rest: &mut Vec<char>) -> Option<u32> {
    let mut digits = String::new();
    while let Some(digit) = rest.pop_if(|c| c.is_ascii_digit()) {
        digits.push(digit);
    }
    digits.parse().ok()
}

/// Returns the number of stages of a layout string: `Et*4|(tttt|)*14tmL` has 16. `None` if it has too many.
pub(super) fn stages(layout: &str) -> Option<usize> {
    let (mut bars, mut open): (usize, usize) = (0, 0);
    let mut rest = layout.chars().peekable();
    while let Some(c) = rest.next() {
        match c {
            '|' => bars = bars.checked_add(times(&mut rest))?,
            '(' => open = bars,
            ')' => bars = (bars - open).checked_mul(times(&mut rest))?.checked_add(open)?,
            _ => {}
        }
        (bars <= MOST).then_some(())?;
    }
    Some(bars + 1)
}

/// Reads `*14`; 1 if there is no factor.
fn times(rest: &mut Peekable<Chars<'_>>) -> usize {
    let mut digits = String::new();
    if rest.next_if_eq(&'*').is_some() {
        while let Some(digit) = rest.next_if(char::is_ascii_digit) {
            digits.push(digit);
        }
    }
    digits.parse().unwrap_or(1)
}

/// What the pattern of a hybrid model says.
pub(super) struct Hybrid {
    /// Layers, without those of multi-token prediction.
    pub layers: u32,
    /// Segments of the pipeline.
    pub stages: u32,
    /// Layers of multi-token prediction.
    pub predictions: Option<u32>,
}

/// Reads the pattern of a hybrid model: `M*M*|M-M-/M-/M-`.
pub(super) fn hybrid(pattern: &str) -> Hybrid {
    let mut parts = pattern.split('/');
    let main = parts.next().unwrap_or("");
    let predictions = parts.filter(|part| !part.is_empty()).count() as u32;
    Hybrid {
        layers: main.chars().filter(|c| !c.is_whitespace() && *c != '|').count() as u32,
        stages: main.matches('|').count() as u32 + 1,
        predictions: Some(predictions).filter(|&count| count > 0),
    }
}
