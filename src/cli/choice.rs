//! An option that takes one of a few names.

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};

/// Takes the name of one of `choices`: its name, others after a `|`, what it is, and the value.
pub fn one_of<T: Clone + Send + Sync + 'static>(
    choices: impl IntoIterator<Item = (&'static str, &'static str, T)>,
) -> impl TypedValueParser<Value = T> {
    let choices: Vec<_> = choices.into_iter().collect();
    let possible = |(names, help, _): &(&'static str, &'static str, T)| {
        let mut names = names.split('|');
        PossibleValue::new(names.next().unwrap_or_default()).aliases(names).help(*help)
    };
    let names: Vec<PossibleValue> = choices.iter().map(possible).collect();
    PossibleValuesParser::new(names).try_map(move |found| {
        let chosen = choices.iter().find(|(names, ..)| names.split('|').any(|name| name == found));
        chosen.map(|(.., value)| value.clone()).ok_or("it is none of these")
    })
}
