//! Which file of a crate uses which: read from `use` lines and paths, re-exports followed to where things are written.

use crate::support::root;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// Returns the Rust files of a folder; crates inside it are left out.
pub fn rust_files(folder: &Path) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for entry in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        if entry.is_dir() && !entry.join("Cargo.toml").exists() {
            files.extend(rust_files(&entry));
        } else if entry.extension().is_some_and(|e| e == "rs") {
            files.push(entry);
        }
    }
    files.sort();
    files
}

/// Names from the crate's root on.
type Names = Vec<String>;

/// A file's module, what it imports by which name, and every path in it.
struct Source {
    file: String,
    imports: BTreeMap<String, Names>,
    paths: BTreeSet<Names>,
}

/// All modules of the crate by their names.
pub struct Imports(BTreeMap<Names, Source>);

impl Imports {
    /// Reads the crate in `folder`.
    pub fn read(folder: &Path) -> Imports {
        let read = |path: PathBuf| {
            let file = path.strip_prefix(folder).unwrap().with_extension("").to_string_lossy().to_string();
            let mut module: Names = file.split('/').map(str::to_string).collect();
            module.pop_if(|last| ["mod", "lib"].contains(&last.as_str()));
            let text = fs::read_to_string(&path).unwrap();
            let tokens = tokens(&text);
            let (imports, paths) = names(&tokens);
            (module, Source { file: path.strip_prefix(root()).unwrap().display().to_string(), imports, paths })
        };
        let apart = |path: &PathBuf| {
            ["main.rs", "build.rs", "internals.rs", "api.rs"].iter().any(|name| *path == folder.join(name))
        };
        Imports(rust_files(folder).into_iter().filter(|path| !apart(path)).map(read).collect())
    }

    /// The files that each file uses, itself left out. What a `pub use` hands on is used by who asks for it.
    pub fn edges(&self) -> BTreeMap<&str, BTreeSet<&str>> {
        let of = |module: &Names, source: &Source| {
            let found =
                source.paths.iter().filter_map(|path| self.find(module, path, 0)).map(|found| found.file.as_str());
            found.filter(|file| *file != source.file).collect()
        };
        self.0.iter().map(|(module, source)| (source.file.as_str(), of(module, source))).collect()
    }

    /// Where that is written which `path` means in `module`; nothing for other crates.
    fn find(&self, module: &Names, path: &[String], depth: usize) -> Option<&Source> {
        let (mut at, mut rest) = (module.clone(), path);
        match path.first()?.as_str() {
            "crate" => (at, rest) = (Vec::new(), &rest[1..]),
            "self" => rest = &rest[1..],
            "super" => {
                while rest.first().is_some_and(|name| name == "super") {
                    at.pop()?;
                    rest = &rest[1..];
                }
            }
            first if self.0.contains_key(&[&at[..], &[first.to_string()]].concat()) => {}
            first => {
                let import = self.0[&at].imports.get(first).filter(|import| depth < 9 && import[..] != path[..1])?;
                return self.find(&at, &[&import[..], &path[1..]].concat(), depth + 1);
            }
        }
        while let Some(name) = rest.first() {
            let inner = [&at[..], std::slice::from_ref(name)].concat();
            if self.0.contains_key(&inner) {
                (at, rest) = (inner, &rest[1..]);
            } else if let Some(import) = self.0[&at].imports.get(name).filter(|_| depth < 9) {
                return self.find(&at, &[&import[..], &rest[1..]].concat(), depth + 1).or(self.0.get(&at));
            } else {
                break;
            }
        }
        self.0.get(&at)
    }
}

/// Names, `::` and single characters; comments and literals left out.
fn tokens(text: &str) -> Vec<String> {
    let mut tokens = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let mut length = first.len_utf8();
        if rest.starts_with("//") {
            length = rest.find('\n').unwrap_or(rest.len());
        } else if rest.starts_with("r#\"") || rest.starts_with("br#\"") {
            length = rest.find("\"#").unwrap() + 2;
        } else if first == '"' {
            let mut escaped = false;
            let end = |(_, c): &(usize, char)| {
                if escaped {
                    escaped = false;
                    false
                } else {
                    escaped = *c == '\\';
                    *c == '"'
                }
            };
            length = 2 + rest[1..].char_indices().find(end).unwrap().0;
        } else if rest.starts_with("'\"'") || rest.starts_with("'\\") {
            length = 2 + rest[2..].find('\'').unwrap() + 1;
        } else if is_of_a_name(first) {
            length = rest.find(|c| !is_of_a_name(c)).unwrap_or(rest.len());
            tokens.push(rest[..length].to_string());
        } else if rest.starts_with("::") {
            length = 2;
            tokens.push("::".to_string());
        } else if !first.is_whitespace() {
            tokens.push(first.to_string());
        }
        rest = &rest[length..];
    }
    tokens
}

/// What is imported, by the name that it has here; and every path that is used. A `pub use` is a use where its name is used.
fn names(tokens: &[String]) -> (BTreeMap<String, Names>, BTreeSet<Names>) {
    let (mut imports, mut handed_on, mut paths) = (BTreeMap::new(), Vec::new(), BTreeSet::new());
    let mut i = 0;
    while i < tokens.len() {
        let before = i.checked_sub(1).map_or("", |i| tokens[i].as_str());
        if tokens[i] == "use" {
            let mut leaves = Vec::new();
            i += 1;
            tree(tokens, &mut i, &[], &mut leaves);
            imports.extend(leaves.iter().cloned());
            match before {
                "pub" | ")" => handed_on.extend(leaves),
                _ => paths.extend(leaves.into_iter().map(|(_, path)| path)),
            }
        } else if ["::", ".", "in", "mod", "fn"].contains(&before) || !tokens[i].starts_with(is_of_a_name) {
            i += 1;
        } else {
            let mut path = vec![tokens[i].clone()];
            i += 1;
            while tokens.get(i).is_some_and(|next| next == "::") && tokens[i + 1].starts_with(is_of_a_name) {
                path.push(tokens[i + 1].clone());
                i += 2;
            }
            paths.insert(path);
        }
    }
    // a name by itself means what was imported by it, never another file
    let (alone, mut paths): (BTreeSet<Names>, BTreeSet<Names>) = paths.into_iter().partition(|path| path.len() == 1);
    paths.extend(
        handed_on.into_iter().filter(|(name, _)| alone.iter().any(|path| path[0] == *name)).map(|(_, path)| path),
    );
    (imports, paths)
}

fn is_of_a_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// One tree of a `use`: `a::{b, c as d}` is (b, a::b) and (d, a::c).
fn tree(tokens: &[String], i: &mut usize, prefix: &[String], leaves: &mut Vec<(String, Names)>) {
    let mut path = prefix.to_vec();
    loop {
        match tokens[*i].as_str() {
            "{" => {
                while tokens[*i] != "}" {
                    *i += 1;
                    if tokens[*i] != "}" {
                        tree(tokens, i, &path, leaves);
                    }
                }
                *i += 1;
                return;
            }
            "::" => {}
            "as" => {
                leaves.push((tokens[*i + 1].clone(), path));
                *i += 2;
                return;
            }
            "," | "}" | ";" => {
                path.retain(|name| name != "*");
                if path.len() > 1 && path.last().is_some_and(|name| name == "self") {
                    path.pop();
                }
                leaves.extend(path.last().cloned().map(|name| (name, path)));
                return;
            }
            name => path.push(name.to_string()),
        }
        *i += 1;
    }
}
