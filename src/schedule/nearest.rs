//! Suggestions for an unknown name: the known ones that it probably means.

/// Most names suggested.
const MOST: usize = 3;

/// Returns the letters and digits of a name in lower case, so that hyphens, underscores and spaces do not matter.
pub fn plain(name: &str) -> String {
    name.chars().filter(|c| c.is_alphanumeric()).collect::<String>().to_lowercase()
}

/// Splits a name into runs of letters and runs of digits: `llama3-70b` into llama, 3, 70 and b.
pub fn words(name: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    let mut last = None;
    for c in name.to_lowercase().chars() {
        let kind = if c.is_alphabetic() { Some(false) } else { c.is_numeric().then_some(true) };
        match (words.last_mut(), kind) {
            (Some(word), Some(_)) if kind == last => word.push(c),
            (_, Some(_)) => words.push(c.to_string()),
            (_, None) => {}
        }
        last = kind;
    }
    words
}

fn is_within(few: &[String], many: &[String]) -> bool {
    let mut rest = many.iter();
    few.iter().all(|word| rest.any(|other| other == word))
}

/// Whether one of two names has all numbers of the other, in their order: `a100` and `a100-sxm-80gb`, but not `b100` and `b200`, and
/// not `v3` and `v3.2`.
pub fn same_numbers(a: &str, b: &str) -> bool {
    let (a, b) = (numbers(a), numbers(b));
    is_within(&a, &b) || is_within(&b, &a)
}

/// Returns the numbers in a name: `llama-3.1-8b` has 3.1 and 8.
fn numbers(name: &str) -> Vec<String> {
    let runs = name.split(|c: char| !c.is_numeric() && c != '.').map(|run| run.trim_matches('.'));
    runs.filter(|run| !run.is_empty()).map(str::to_string).collect()
}

/// Whether `asked` may mean the chip `known`: the first part with a number is the same, or the beginning of the other's name.
/// One letter more, less or another is another chip: gh200 is no gb200, and an a100x no a100.
pub fn same_chip(asked: &str, known: &str) -> bool {
    fn code(name: &str) -> Option<String> {
        let mut parts = name.split(|c: char| !c.is_alphanumeric());
        parts.find(|part| part.contains(|c: char| c.is_numeric())).map(str::to_lowercase)
    }
    let (Some(asked), Some(code)) = (code(asked), code(known)) else { return true };
    let rest = asked.strip_prefix(&code);
    plain(known).starts_with(&asked) || rest.is_some_and(|rest| rest.is_empty() || rest.len() > 2)
}

/// Returns at most three of `known` that `name` probably means. In this order: equal but for hyphens and case; a long name with few
/// other letters; names that begin with it or contain all its words; the longest whose words it contains; a misspelled name with the
/// same first letter (gpu is no misspelled cpu).
pub fn nearest<'a>(name: &str, known: &[&'a str]) -> Vec<&'a str> {
    let asked = (plain(name), words(name));
    if asked.0.is_empty() {
        return Vec::new();
    }
    let of = |fits: &dyn Fn(&str) -> bool| -> Vec<&'a str> {
        known.iter().copied().filter(|known| fits(known)).take(MOST).collect()
    };
    let longest = || {
        let within = |known: &&&str| words(known).len() > 1 && is_within(&words(known), &asked.1);
        known.iter().filter(within).max_by_key(|known| plain(known).len()).copied().into_iter().collect()
    };
    let misspelled = |share: usize| -> Vec<&'a str> {
        let begins_alike = |known: &&&str| plain(known).chars().next() == asked.0.chars().next();
        let far = |known: &&'a str| (strsim::osa_distance(&plain(known), &asked.0), *known);
        let nearest = known.iter().filter(begins_alike).map(far).min_by_key(|(far, _)| *far);
        let most = (asked.0.chars().count() / share).clamp(1, 3);
        nearest.filter(|(far, _)| *far <= most).map(|(_, known)| known).into_iter().collect()
    };
    let is_long = asked.0.chars().count() > 4;
    let found = of(&|known| plain(known) == asked.0);
    let digits = |name: &str| name.chars().filter(char::is_ascii_digit).collect::<String>();
    let slip = || misspelled(8).into_iter().filter(|known| digits(known) == digits(name)).collect();
    let found = if found.is_empty() && is_long { slip() } else { found };
    let found = if found.is_empty() { of(&|known| plain(known).starts_with(&asked.0)) } else { found };
    let found = if found.is_empty() { of(&|known| is_within(&asked.1, &words(known))) } else { found };
    let found = if found.is_empty() { longest() } else { found };
    if found.is_empty() { misspelled(3) } else { found }
}

/// `a`, `a or b`, `a, b or c`.
pub fn either(names: &[impl AsRef<str>]) -> String {
    let names: Vec<&str> = names.iter().map(AsRef::as_ref).collect();
    match names.split_last() {
        None => String::new(),
        Some((last, [])) => (*last).to_string(),
        Some((last, rest)) => format!("{} or {last}", rest.join(", ")),
    }
}

/// A question in brackets after an unknown name; nothing where no name is like it.
pub fn hint(names: &[impl AsRef<str>]) -> String {
    if names.is_empty() { String::new() } else { format!(" (did you mean {}?)", either(names)) }
}
