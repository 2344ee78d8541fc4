//! Labels that tell compared timelines of one schedule apart: by file, or else by p and m, or else by number.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

/// What a label is made from.
pub struct Labelled {
    pub schedule: String,
    /// The file or the report folder as it was given.
    pub origin: PathBuf,
    pub devices: u32,
    pub microbatches: u32,
}

/// Returns what tells each of `all` from the others of its schedule, such as a file's name; none if there are no others. File
/// names have as many folders in front as that takes.
pub fn labels(all: &[Labelled]) -> Vec<Option<String>> {
    let mut by_schedule: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for (index, one) in all.iter().enumerate() {
        by_schedule.entry(&one.schedule).or_default().push(index);
    }
    let mut labels = vec![None; all.len()];
    for group in by_schedule.into_values().filter(|group| group.len() > 1) {
        let shown = distinct(group.iter().map(|&index| all[index].origin.as_path()));
        let mut texts: Vec<Vec<String>> = vec![Vec::new(); group.len()];
        if shown.len() > 1 {
            for (text, &index) in texts.iter_mut().zip(&group) {
                text.extend(shown.get(&normal(&all[index].origin)).cloned());
            }
        }
        more(&mut texts, |number| {
            let Labelled { devices, microbatches, .. } = all[group[number]];
            format!("p={devices} m={microbatches}")
        });
        let mut seen: BTreeMap<Vec<String>, usize> = BTreeMap::new();
        let numbers: Vec<usize> = texts
            .iter()
            .map(|text| {
                let count = seen.entry(text.clone()).or_default();
                *count += 1;
                *count
            })
            .collect();
        more(&mut texts, |number| numbers[number].to_string());
        for (text, &index) in texts.into_iter().zip(&group) {
            labels[index] = Some(text.join(", "));
        }
    }
    labels
}

/// Adds a text to each of `texts` that is equal to another one, if the text distinguishes any of them.
fn more(texts: &mut [Vec<String>], text: impl Fn(usize) -> String) {
    let mut alike: BTreeMap<Vec<String>, Vec<usize>> = BTreeMap::new();
    for (number, text) in texts.iter().enumerate() {
        alike.entry(text.clone()).or_default().push(number);
    }
    for numbers in alike.into_values().filter(|numbers| numbers.len() > 1) {
        let added: Vec<String> = numbers.iter().map(|&number| text(number)).collect();
        if added.iter().collect::<BTreeSet<_>>().len() > 1 {
            numbers.into_iter().zip(added).for_each(|(number, added)| texts[number].push(added));
        }
    }
}

/// Returns the shortest end of each path that no other path has.
fn distinct<'a>(paths: impl Iterator<Item = &'a Path>) -> BTreeMap<PathBuf, String> {
    let mut left: BTreeSet<PathBuf> = paths.map(normal).collect();
    let mut found = BTreeMap::new();
    let mut length = 1;
    while !left.is_empty() {
        let end = |path: &Path| -> PathBuf {
            let count = path.components().count();
            path.components().skip(count.saturating_sub(length)).collect()
        };
        let mut counts: BTreeMap<PathBuf, usize> = BTreeMap::new();
        for path in left.iter().chain(found.keys()) {
            *counts.entry(end(path)).or_default() += 1;
        }
        let (unique, rest): (BTreeSet<PathBuf>, BTreeSet<PathBuf>) =
            left.into_iter().partition(|path| counts[&end(path)] == 1 || length >= path.components().count());
        found.extend(unique.into_iter().map(|path| (path.clone(), end(&path).display().to_string())));
        (left, length) = (rest, length + 1);
    }
    found
}

/// Returns a path without `.` and trailing slashes.
fn normal(path: &Path) -> PathBuf {
    path.components().filter(|part| *part != Component::CurDir).collect()
}
