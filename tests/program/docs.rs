//! README and book: commands run and print the output that is shown, links point to something, every field of a file is described.
//!
//! Runs the lines of a ```` ```sh ```` block in order, in one folder per page; `# exits with 3` states an exit code other than 0. A
//! ```` ```text ```` or ```` ```json ```` block right after it is their output, on stderr if they fail. The contents of a
//! ```` ```python,file=NAME ```` block are written to that file, and those of a ```` ```rust,ignore,from=FILE ```` block must equal that
//! file of the repository. For ```` ```sh,gpu ````, `sh,mpi` and `sh,slow` only the existence of commands and options is checked.

use crate::support::{PROGRAM, files, root};
use assert_cmd::Command;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

const TINY: &str = "--blocks 2 --channels 32 --heads 2 --seq 16 --steps 2 --warmup 1 -q";

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

/// Returns the Markdown files of the repository's root and the pages of the book.
fn pages() -> Vec<PathBuf> {
    [root(), root().join("docs/src")].map(|folder| files(&folder, "md")).concat()
}

struct Block {
    /// The words after the fence, which commas separate.
    info: Vec<String>,
    /// Number of its first line, from 1.
    line: usize,
    lines: Vec<String>,
    /// Whether it follows the previous block immediately.
    follows: bool,
}

fn blocks(page: &Path) -> Vec<Block> {
    let mut blocks: Vec<Block> = Vec::new();
    let (mut open, mut last_end) = (false, 0);
    for (number, line) in (1..).zip(read(page).lines()) {
        match line.strip_prefix("```") {
            Some(_) if open => (open, last_end) = (false, number),
            Some(info) => {
                let info = info.split(',').map(str::to_string).collect();
                blocks.push(Block { info, line: number, lines: Vec::new(), follows: number == last_end + 1 });
                open = true;
            }
            None if open => blocks.last_mut().unwrap().lines.push(line.to_string()),
            None => {}
        }
    }
    assert!(!open, "{}: a block has no end", page.display());
    blocks
}

/// Runs `line` with a shell in `folder` and returns its output: stderr if it is expected to fail.
fn shell(line: &str, folder: &Path, place: &str) -> String {
    let path = format!("{}:{}", Path::new(PROGRAM).parent().unwrap().display(), std::env::var("PATH").unwrap());
    let mut command = Command::new("sh");
    command.args(["-c", line]).current_dir(folder).timeout(Duration::from_secs(120));
    let output = command.env("PATH", path).env("COLUMNS", "80").env("NO_COLOR", "1").output().unwrap();
    let [out, err] = [output.stdout, output.stderr].map(|bytes| String::from_utf8(bytes).unwrap());
    let expected = line.split_once("# exits with ").map_or(0, |(_, code)| code.trim().parse().unwrap());
    assert_eq!(output.status.code(), Some(expected), "{place}: {line}\n{err}");
    if expected == 0 { out } else { err }
}

fn run_page(page: &Path) {
    let folder = tempfile::tempdir().unwrap();
    for linked in ["examples", "tests"] {
        std::os::unix::fs::symlink(root().join(linked), folder.path().join(linked)).unwrap();
    }
    let mut printed = String::new();
    for block in blocks(page) {
        let place = format!("{}:{}", page.display(), block.line);
        if let Some(name) = block.info.iter().find_map(|info| info.strip_prefix("file=")) {
            fs::write(folder.path().join(name), block.lines.join("\n") + "\n").unwrap();
        }
        if let Some(name) = block.info.iter().find_map(|info| info.strip_prefix("from=")) {
            assert_eq!(block.lines.join("\n"), read(&root().join(name)).trim_end(), "{place}: this is not {name}");
        }
        match &block.info[..] {
            [info] if info == "sh" => {
                let commands = block.lines.iter().filter(|line| line.starts_with("pipesim "));
                printed = commands.map(|line| shell(line, folder.path(), &place)).collect();
            }
            [info] if (info == "text" || info == "json") && block.follows => {
                let found: Vec<&str> = printed.trim_end().lines().map(str::trim_end).collect();
                assert_eq!(found, block.lines, "{place}: the output is now:\n{printed}");
            }
            _ => {}
        }
    }
}

#[test]
fn commands_run_and_print_the_output_that_is_shown() {
    let pages = pages();
    std::thread::scope(|scope| {
        let running: Vec<_> = pages.iter().map(|page| scope.spawn(|| run_page(page))).collect();
        let failed = running.into_iter().filter_map(|page| page.join().err()).count();
        assert_eq!(failed, 0, "pages with wrong commands; see above");
    });
}

/// Returns the help text of a command.
fn help(verb: &[&str]) -> String {
    let output = std::process::Command::new(PROGRAM).args(verb).arg("--help").output().unwrap();
    assert!(output.status.success(), "no such command: {verb:?}");
    String::from_utf8(output.stdout).unwrap()
}

#[test]
fn every_command_has_verbs_and_flags_that_exist() {
    let mut helps: BTreeMap<Vec<String>, String> = BTreeMap::new();
    for page in pages() {
        for block in blocks(&page).iter().filter(|block| block.info[0] == "sh") {
            for line in &block.lines {
                let line = line.split_once(" #").map_or(line.as_str(), |(command, _)| command);
                let Some((_, rest)) =
                    line.split_once("pipesim ").or_else(|| line.split_once("cargo run --release -- "))
                else {
                    continue;
                };
                let end = |word: &&str| !["|", ">", "&&", "--"].contains(word);
                let words: Vec<&str> = rest.split_whitespace().take_while(end).collect();
                let verb: Vec<&str> = words.iter().copied().take(if words[0] == "report" { 2 } else { 1 }).collect();
                let known =
                    helps.entry(verb.iter().map(|word| word.to_string()).collect()).or_insert_with(|| help(&verb));
                let known: BTreeSet<&str> = known.split([' ', ',', '\n']).collect();
                for flag in words.iter().filter(|word| word.starts_with('-') && word.len() > 1) {
                    let flag = flag.split('=').next().unwrap();
                    assert!(known.contains(flag), "{}: {line}: {verb:?} has no {flag}", page.display());
                }
            }
        }
    }
}

/// Returns the anchors of a page's headings, in the form of GitHub and mdBook.
fn anchors(text: &str) -> BTreeSet<String> {
    let headings =
        text.lines().filter_map(|line| line.strip_prefix('#')).map(|line| line.trim_start_matches('#').trim());
    let letter = |c: char| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_');
    headings
        .map(|heading| heading.to_lowercase().chars().filter(|&c| letter(c)).collect::<String>().replace(' ', "-"))
        .collect()
}

#[test]
fn links_point_to_something() {
    for page in pages() {
        let all = read(&page);
        let text: String = all.split('`').step_by(2).collect(); // without code
        let folder = page.parent().unwrap();
        let links = text.split("](").skip(1).map(|rest| rest.split(')').next().unwrap());
        assert!(!all.contains("{{#"), "{}: GitHub shows mdBook's directives as they are", page.display());
        for link in links.filter(|link| !link.contains("://")) {
            let (path, anchor) = link.split_once('#').map_or((link, None), |(path, anchor)| (path, Some(anchor)));
            let target = if path.is_empty() { page.clone() } else { folder.join(path) };
            assert!(target.exists(), "{}: {link} does not exist", page.display());
            let found = anchor.is_none_or(|anchor| anchors(&read(&target)).contains(anchor));
            assert!(found, "{}: {link} names no heading", page.display());
        }
    }
    let summary = read(&root().join("docs/src/SUMMARY.md"));
    for page in files(&root().join("docs/src"), "md") {
        let name = page.file_name().unwrap().to_str().unwrap();
        assert!(name == "SUMMARY.md" || summary.contains(&format!("({name})")), "{name} is not in SUMMARY.md");
    }
}

#[test]
fn tests_all_runs_the_commands_of_contributing() {
    let all = read(&root().join("tests/all"));
    let page = root().join("CONTRIBUTING.md");
    for block in blocks(&page).iter().filter(|block| block.info.iter().any(|info| info == "ci")) {
        block.lines.iter().for_each(|line| assert!(all.contains(line.trim()), "tests/all does not run {line}"));
    }
}

/// `target/last-green` names a commit only if all of it, and nothing else, was tested.
#[test]
fn last_green_is_a_commit_that_was_tested_as_a_whole() {
    type Change<'a> = &'a dyn Fn(&Path);
    /// A name, what happens before and during the run, variables, and whether the commit is written.
    type Case<'a> = (&'a str, Change<'a>, Change<'a>, &'a [(&'a str, &'a str)], bool);
    let script = root().join("tests/last-green");
    let git = |folder: &Path, words: &[&str]| {
        let who = ["-c", "user.name=x", "-c", "user.email=x@example.com", "-c", "commit.gpgsign=false"];
        let done = Command::new("git").args(who).args(words).current_dir(folder).output().unwrap();
        assert!(done.status.success(), "{words:?}: {}", String::from_utf8_lossy(&done.stderr));
        String::from_utf8(done.stdout).unwrap().trim().to_string()
    };
    let write = |folder: &Path, name: &str| fs::write(folder.join(name), name).unwrap();
    let checkout = |folder: &Path, with_git: bool| {
        for inner in ["tests", "target"] {
            fs::create_dir_all(folder.join(inner)).unwrap();
        }
        fs::copy(&script, folder.join("tests/last-green")).unwrap();
        fs::write(folder.join(".gitignore"), "/target\n").unwrap();
        write(folder, "source");
        if with_git {
            git(folder, &["init", "-q"]);
            git(folder, &["add", "-A"]);
            git(folder, &["commit", "-qm", "x"]);
        }
        fs::write(folder.join("target/last-green"), "an older commit\n").unwrap();
    };
    // runs the script's two parts with a change before and one between them; returns what it wrote
    let green = |folder: &Path, before: Change<'_>, between: Change<'_>, variables: &[(&str, &str)]| {
        let part = |words: &[&str]| {
            let mut command = Command::new(folder.join("tests/last-green"));
            command.args(words).current_dir("/").envs(variables.iter().copied());
            ["MPI", "WHEELS", "BROWSER"].iter().filter(|_| variables.is_empty()).for_each(|what| {
                command.env_remove(format!("PIPESIM_WITHOUT_{what}"));
            });
            let done = command.output().unwrap();
            assert!(done.status.success(), "{words:?}: {}", String::from_utf8_lossy(&done.stderr));
            String::from_utf8(done.stdout).unwrap().trim().to_string()
        };
        before(folder);
        let commit = part(&["begin"]);
        assert!(!folder.join("target/last-green").exists(), "the older one is removed first");
        between(folder);
        part(&["end", &commit]);
        fs::read_to_string(folder.join("target/last-green")).ok()
    };
    let nothing = |_: &Path| {};
    let changed = |folder: &Path| write(folder, "other");
    let edited = |folder: &Path| fs::write(folder.join("source"), "edited").unwrap();
    let ignored = |folder: &Path| write(folder, "target/other");
    let committed = |folder: &Path| {
        write(folder, "more");
        git(folder, &["add", "-A"]);
        git(folder, &["commit", "-qm", "y"]);
    };
    let hidden = |folder: &Path| {
        git(folder, &["config", "status.showUntrackedFiles", "no"]);
        write(folder, "other");
    };
    let cases: [Case<'_>; 10] = [
        ("clean", &nothing, &nothing, &[], true),
        ("an ignored file", &ignored, &ignored, &[], true),
        ("an empty variable", &nothing, &nothing, &[("PIPESIM_WITHOUT_MPI", ""), ("PIPESIM_WITHOUT_WHEELS", "")], true),
        ("an unknown file", &changed, &nothing, &[], false),
        ("an unknown file that git hides", &hidden, &nothing, &[], false),
        ("an edited file", &edited, &nothing, &[], false),
        ("an unknown file meanwhile", &nothing, &changed, &[], false),
        ("an edit meanwhile", &nothing, &edited, &[], false),
        ("a commit meanwhile", &nothing, &committed, &[], false),
        ("a skipped check", &nothing, &nothing, &[("PIPESIM_WITHOUT_ANYTHING", "1")], false),
    ];
    for (what, before, between, variables, is_written) in cases {
        let folder = tempfile::tempdir().unwrap();
        checkout(folder.path(), true);
        let variables: Vec<(&str, &str)> = variables.to_vec();
        let found = green(folder.path(), before, between, &variables);
        let expected = is_written.then(|| git(folder.path(), &["rev-parse", "HEAD"]) + "\n");
        assert_eq!(found, expected, "{what}");
    }
    // without git's data, and within another checkout, it passes and writes nothing
    let outer = tempfile::tempdir().unwrap();
    checkout(outer.path(), false);
    assert_eq!(green(outer.path(), &nothing, &nothing, &[]), None);
    checkout(outer.path(), true);
    let inner = outer.path().join("target/inner");
    checkout(&inner, false);
    assert_eq!(green(&inner, &nothing, &nothing, &[]), None);
    let all = read(&root().join("tests/all"));
    assert!(
        all.find("tests/last-green begin") < all.find("cargo clippy")
            && all.ends_with("tests/last-green end \"$commit\"\n")
    );
}

#[test]
fn the_book_describes_every_crate() {
    let page = read(&root().join("docs/src/architecture.md"));
    for folder in fs::read_dir(root().join("src")).unwrap().map(|entry| entry.unwrap().path()) {
        let name = folder.file_name().unwrap().to_str().unwrap();
        let is_described = page.contains(&format!("(../../src/{name})"));
        assert!(is_described || !folder.join("Cargo.toml").exists(), "docs/src/architecture.md lacks the crate {name}");
    }
}

#[test]
fn the_readme_is_short() {
    let words = read(&root().join("README.md")).split_whitespace().count();
    assert!(words <= 1200, "README.md has {words} words; at most 1,200 are allowed, the book has room for more");
}

/// Appends the small text files below `folder` to `found`.
fn texts(folder: &Path, found: &mut Vec<PathBuf>) {
    for path in fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()) {
        let name = path.file_name().unwrap().to_str().unwrap();
        if path.is_dir() {
            if !["target", ".git", "golden", "seeds", "corpus", "artifacts", "latest"].contains(&name) {
                texts(&path, found);
            }
        } else if name != "Cargo.lock" && fs::metadata(&path).unwrap().len() < 1 << 18 {
            found.push(path);
        }
    }
}

#[test]
fn every_mentioned_document_exists() {
    let mut all = Vec::new();
    texts(&root(), &mut all);
    let names: BTreeSet<String> = all.iter().map(|path| path.to_str().unwrap().to_string()).collect();
    let made = "summary.md"; // by tests/gpu
    // rules name documents of other programs
    for path in all.iter().filter(|path| !path.starts_with(root().join("frameworks"))) {
        let Ok(text) = fs::read_to_string(path) else { continue };
        for word in text.split(|c: char| !(c.is_ascii_alphanumeric() || "_-./".contains(c))) {
            let Some(name) = word.strip_suffix('.').unwrap_or(word).strip_suffix(".md").filter(|name| !name.is_empty())
            else {
                continue;
            };
            let name = format!("{}.md", name.trim_start_matches("../").trim_start_matches("./"));
            let here = names.iter().any(|file| file.ends_with(&format!("/{}", name.trim_start_matches("../"))));
            assert!(here || name.ends_with(made), "{} mentions {word}, which does not exist", path.display());
        }
        for word in [["DESI", "GN"].concat(), ["ROAD", "MAP"].concat()] {
            assert!(!text.contains(&word), "{} mentions {word}, which does not exist", path.display());
        }
    }
}

fn keys(value: &Value, found: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            for (key, value) in fields {
                found.insert(key.clone());
                if !["provenance", "costs", "op_overhead_ns"].contains(&key.as_str()) {
                    keys(value, found);
                }
            }
        }
        Value::Array(values) => values.iter().for_each(|value| keys(value, found)),
        _ => {}
    }
}

#[test]
fn every_field_is_described() {
    let folder = tempfile::tempdir().unwrap();
    let described = ["formats.md", "definitions.md"].map(|page| read(&root().join("docs/src").join(page))).concat();
    let commands = [
        "predict -p 2 -m 2 -s 1f1b --jitter 0.1 --samples 4 --format json -q -o timeline.json".to_string(),
        format!("run -p 2 -m 2 -s 1f1b {TINY} --baseline --format json -o folder"),
        format!("profile -p 2 -m 2 {TINY}"),
        "compare folder/1f1b-predicted.json folder/1f1b-measured.json --format json -q".to_string(),
        "explain -p 2 -m 2 -s zb-h1 --costs comm=0.1 --exact --memory-cap 2 --format json -q".to_string(),
        "check -p 2 -m 2 -s 1f1b --format json -q".to_string(),
        "export -p 2 -m 2 -s chimera --to json -q".to_string(),
        "doctor --format json".to_string(),
        "schedules --json".to_string(),
    ];
    let printed = commands.iter().map(|arguments| shell(&format!("pipesim {arguments}"), folder.path(), "formats.md"));
    let written = ["timeline.json", "folder/1f1b-measured.json", "folder/report.json"];
    let mut found = BTreeSet::new();
    for text in printed.collect::<Vec<_>>().into_iter().chain(written.map(|name| read(&folder.path().join(name)))) {
        keys(&serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}")), &mut found);
    }
    let missing: Vec<&String> = found.iter().filter(|key| !described.contains(&format!("`{key}`"))).collect();
    assert!(missing.is_empty(), "docs/src/formats.md does not describe {missing:?}");
}
