//! Where output goes: what a name means, places that cannot be written, folders that are written whole, colours, widths, and
//! what strangers put into messages.

use crate::cli::pipesim;
use crate::support::PROGRAM;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use tempfile::TempDir;

const SMALL: &str = "predict -q -p 2 -m 4 -s 1f1b";
const TINY: &str = "-p 2 -m 2 -s 1f1b --device cpu --blocks 2 --channels 32 --heads 2 --seq 16 --steps 1 --warmup 0";

/// Code, stdout and stderr of a shell line in which `$P` is the program.
fn shell(line: &str, folder: &Path) -> (i32, String, String) {
    let mut command = Command::new("env"); // signals are heeded even where whoever runs the tests ignores them
    command
        .args(["--default-signal=INT,TERM,HUP", "bash", "-c", line])
        .current_dir(folder)
        .env("P", PROGRAM)
        .env("RUST_BACKTRACE", "0")
        .stdin(Stdio::null());
    for name in ["NO_COLOR", "CLICOLOR_FORCE", "COLUMNS", "COLORTERM", "TERM"] {
        command.env_remove(name);
    }
    let output = command.output().unwrap();
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
    (output.status.code().unwrap_or(-1), text(output.stdout), text(output.stderr))
}

/// Every file and folder below one, with what is in it.
fn tree(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut found = BTreeMap::new();
    let mut left = vec![folder.to_path_buf()];
    while let Some(at) = left.pop() {
        for entry in fs::read_dir(at).unwrap() {
            let path = entry.unwrap().path();
            let name = path.strip_prefix(folder).unwrap().display().to_string();
            found.insert(name, fs::read(&path).unwrap_or_default());
            if path.is_dir() {
                left.push(path);
            }
        }
    }
    found
}

fn names(folder: &Path) -> Vec<String> {
    tree(folder).into_keys().collect()
}

/// Each verb that writes.
fn writers() -> Vec<String> {
    let quick = TINY.replace("-p 2 -m 2 -s 1f1b ", "");
    vec![
        SMALL.to_string(),
        "explain -q -p 2 -m 2 -s 1f1b".to_string(),
        format!("run {TINY}"),
        format!("report accuracy -p 2 -m 2 -s 1f1b {quick}"),
        format!("profile {TINY}"),
        "export -p 2 -m 2 -s 1f1b --to json".to_string(),
    ]
}

#[test]
fn a_name_says_what_is_written_and_another_is_refused_before_any_work() {
    let folder = TempDir::new().unwrap();
    for verb in writers() {
        for name in ["x.eps", "e.MD", "x.txt", "x.trace", ".svg", ".json.gz", "v1.2"] {
            let (code, out, err) = shell(&format!("$P {verb} -o {name}"), folder.path());
            assert!(code == 2 && out.is_empty() && !err.contains("step "), "{verb} -o {name}: {code} {err}");
            assert!(err.contains("expected") && err.contains(".json"), "{verb} -o {name}: {err}");
        }
    }
    assert_eq!(shell(&format!("$P {SMALL} -o ''"), folder.path()).0, 2);
    assert!(names(folder.path()).is_empty(), "{:?}", names(folder.path()));
    let (_, _, err) = shell("$P predict -p 2 -m 2 -o v1.2", folder.path());
    assert!(
        err.contains(".svg .png .pdf .html .json .csv .tex .trace.json .trace.json.gz") && err.contains("write v1.2/"),
        "{err}"
    );
    let (code, _, err) = shell(&format!("$P {SMALL} -o X.SVG -o v1.2/ -o out -o .hidden -o x.svg/"), folder.path());
    assert_eq!(code, 0, "{err}");
    let folders: Vec<_> =
        ["v1.2", "out", ".hidden", "x.svg"].map(|name| folder.path().join(name).join("index.html")).into();
    assert!(folders.iter().all(|page| page.is_file()) && folder.path().join("X.SVG").is_file());
}

#[test]
fn a_dash_is_stdout() {
    let folder = TempDir::new().unwrap();
    let (code, out, err) = shell(&format!("$P run -q {TINY} -o - && $P {SMALL} -o -"), folder.path());
    assert!(code == 0 && out.matches("schedule").count() >= 2, "{err}");
    for verb in [format!("profile -q {TINY}"), "export -p 2 -m 2 -s 1f1b --to json".to_string()] {
        let (code, out, err) = shell(&format!("$P {verb} -o -"), folder.path());
        assert!(code == 0 && serde_json::from_str::<Value>(&out).is_ok(), "{verb}: {err}");
    }
    assert!(names(folder.path()).is_empty(), "{:?}", names(folder.path()));
}

/// A report has the same bytes wherever it is written.
#[test]
fn the_command_in_a_report_names_no_output() {
    let folder = TempDir::new().unwrap();
    let outputs = "-o a.trace.json --output b.trace.json --output=c.trace.json -od.trace.json";
    let (code, _, err) = shell(&format!("$P {SMALL} {outputs} --overlap-slowdown 1.1"), folder.path());
    assert_eq!(code, 0, "{err}");
    let files = ["a", "b", "c", "d"].map(|name| fs::read(folder.path().join(format!("{name}.trace.json"))).unwrap());
    assert!(files.iter().all(|bytes| *bytes == files[0]));
    let report: Value = serde_json::from_slice(&files[0]).unwrap();
    assert_eq!(report["otherData"]["provenance"]["command"], format!("pipesim {SMALL} --overlap-slowdown 1.1"));
}

#[test]
fn one_place_is_named_once() {
    let folder = TempDir::new().unwrap();
    fs::create_dir(folder.path().join("sub")).unwrap();
    std::os::unix::fs::symlink("sub", folder.path().join("link")).unwrap();
    let here = folder.path().display();
    for (one, two) in [
        ("x.svg".to_string(), "./x.svg".to_string()),
        ("out".to_string(), "out/".to_string()),
        ("sub/a.svg".to_string(), "link/../sub/a.svg".to_string()),
        ("sub/a.svg".to_string(), "link/a.svg".to_string()),
        ("new/deep".to_string(), format!("{here}/new/./deep")),
        ("sub/".to_string(), "sub/index.html".to_string()),
        ("-".to_string(), "-".to_string()),
    ] {
        let (code, _, err) = shell(&format!("$P {SMALL} -o {one} -o {two}"), folder.path());
        assert!(code == 2 && err.contains("leave one out"), "{one} {two}: {code} {err}");
    }
    assert_eq!(names(folder.path()), ["link", "sub"]);
    assert_eq!(shell(&format!("$P {SMALL} -o sub/ -o sub/more.svg -o x.svg -o X.svg"), folder.path()).0, 0);
}

#[test]
fn what_cannot_be_written_is_found_before_measuring() {
    let folder = TempDir::new().unwrap();
    fs::write(folder.path().join("plain"), "x").unwrap();
    fs::create_dir(folder.path().join("f.json")).unwrap();
    let before = tree(folder.path());
    for verb in writers() {
        for place in [
            "plain/x.json",
            "/proc/x.json",
            "/proc/self/x.json",
            "/dev/full/x.json",
            "none/x.json",
            "f.json",
            "/sys/x.json",
        ] {
            let (code, out, err) = shell(&format!("$P {verb} -o {place}"), folder.path());
            assert!(code == 1 && out.is_empty() && !err.contains("step "), "{verb} -o {place}: {code} {err}");
            assert!(err.contains(place) && err.contains("choose another place"), "{verb} -o {place}: {err}");
        }
        if verb.starts_with("export") || verb.starts_with("profile") {
            continue;
        }
        let long = "x".repeat(300);
        for place in
            ["plain", "plain/", "plain/out", "/proc/out", "/proc/out/deep", "/dev/null", &format!("new/{long}")]
        {
            let (code, out, err) = shell(&format!("$P {verb} -o {place}"), folder.path());
            assert!(code == 1 && out.is_empty() && !err.contains("step "), "{verb} -o {place}: {code} {err}");
        }
    }
    // a command that fails later leaves no folder behind that it only tried
    assert_eq!(shell("$P predict -p 2 -m 2 -s none -o a/b/c -o a/d", folder.path()).0, 2);
    assert!(before == tree(folder.path()), "{:?}", names(folder.path()));
}

/// How a shell line begins that another user runs; `None` where this one cannot become another.
fn as_nobody() -> Option<&'static str> {
    let line = "setpriv --reuid=65534 --regid=65534 --clear-groups";
    let works = Command::new("sh").args(["-c", &format!("{line} {PROGRAM} --version")]).output();
    works.is_ok_and(|output| output.status.success()).then_some(line)
}

#[test]
fn permissions_are_tried_not_looked_at() {
    let Some(nobody) = as_nobody() else { return };
    let folder = TempDir::new().unwrap();
    let at = folder.path();
    let mode = |name: &str, bits: u32| {
        use std::os::unix::fs::PermissionsExt;
        fs::set_permissions(at.join(name), fs::Permissions::from_mode(bits)).unwrap();
    };
    mode("", 0o755);
    ["closed", "open", "open/closed"].iter().for_each(|name| fs::create_dir(at.join(name)).unwrap());
    mode("open", 0o777);
    fs::write(at.join("open/mine.json"), "mine").unwrap();
    let before = tree(at);
    for verb in writers() {
        for place in ["closed/x.json", "open/closed/x.json", "open/mine.json"] {
            let (code, out, err) = shell(&format!("{nobody} $P {verb} -o {place}"), at);
            assert!(code == 1 && out.is_empty() && err.contains("ermission denied"), "{verb} {place}: {code} {err}");
        }
    }
    for place in ["closed/out", "closed/", "closed/a/b", "open/closed/out", "open/closed/", "."] {
        let (code, _, err) = shell(&format!("{nobody} $P {SMALL} -o {place}"), at);
        assert!(code == 1 && err.contains("ermission denied"), "{place}: {code} {err}");
    }
    assert!(before == tree(at), "{:?}", names(at));
    // a folder of its own below one that is not
    assert_eq!(shell(&format!("{nobody} $P {SMALL} -o open/x.json -o open/new/out"), at).0, 0);
}

#[test]
fn one_place_that_fails_does_not_take_the_others() {
    let folder = TempDir::new().unwrap();
    std::os::unix::fs::symlink("/dev/full", folder.path().join("full.svg")).unwrap();
    let (code, out, err) = shell(&format!("$P {SMALL} -o full.svg -o a.svg -o out"), folder.path());
    assert!(code == 1 && out.contains("1f1b") && err.contains("write full.svg"), "{code} {err}");
    let (code, _, err) = shell(&format!("$P {SMALL} -o b.svg -o full.svg >/dev/full"), folder.path());
    assert!(code == 1 && err.contains("error: cannot write to stdout"), "{code} {err}");
    assert!(err.contains("error: expected to write full.svg"), "{err}");
    let (code, _, err) = shell(&format!("$P run -q {TINY} -o run >/dev/full"), folder.path());
    assert!(code == 1 && err.contains("stdout"), "{code} {err}");
    for name in ["a.svg", "b.svg", "out/index.html", "run/report.json"] {
        assert!(folder.path().join(name).is_file(), "{name} was dropped");
    }
}

/// The names that a report folder says it has.
fn listed(folder: &Path) -> Vec<String> {
    let report: Value = serde_json::from_slice(&fs::read(folder.join("report.json")).unwrap()).unwrap();
    let mut files: Vec<String> = serde_json::from_value(report["files"].clone()).unwrap();
    files.sort();
    files
}

#[test]
fn a_report_folder_is_replaced_whole() {
    let folder = TempDir::new().unwrap();
    let out = folder.path().join("out");
    assert_eq!(shell("$P predict -q -p 2 -m 4 -s 1f1b,gpipe -o out", folder.path()).0, 0);
    assert!(names(&out).contains(&"gpipe-predicted.json".to_string()));
    assert_eq!(shell(&format!("$P {SMALL} -o out"), folder.path()).0, 0);
    let wanted = [
        "1f1b-predicted.json",
        "index.html",
        "memory.csv",
        "plots.svg",
        "report.json",
        "timeline.svg",
        "trace.json.gz",
    ];
    assert_eq!((names(&out), listed(&out)), (wanted.map(String::from).to_vec(), wanted.map(String::from).to_vec()));
    // many at once: whoever is last wins whole, and nobody fails
    let many = "for i in $(seq 12); do $P predict -q -p 2 -m $((i + 1)) -s 1f1b,gpipe -o out & all=\"$all $!\"; \
                $P predict -q -p 3 -m $((i + 1)) -s zb-h1 -o out & all=\"$all $!\"; done; for i in $all; do wait $i || exit 9; done";
    for place in ["out", "merged"] {
        let out = folder.path().join(place);
        if place == "merged" {
            fs::create_dir(&out).unwrap();
            fs::write(out.join("notes.txt"), "mine").unwrap();
        }
        let (code, _, err) = shell(&many.replace("-o out", &format!("-o {place}")), folder.path());
        assert_eq!(code, 0, "{err}");
        let found: Vec<String> = names(&out).into_iter().filter(|name| name != "notes.txt").collect();
        assert_eq!(found, listed(&out), "{place} is a mixture");
        let micro = |name: &str| {
            let timeline: Value = serde_json::from_slice(&fs::read(out.join(name)).unwrap()).unwrap();
            timeline["microbatches"].clone()
        };
        let all: Vec<Value> =
            found.iter().filter(|name| name.ends_with("-predicted.json")).map(|name| micro(name)).collect();
        assert!(all.windows(2).all(|pair| pair[0] == pair[1]), "{place} is a mixture: {all:?}");
    }
    assert_eq!(fs::read(folder.path().join("merged/notes.txt")).unwrap(), b"mine");
    let left: Vec<String> =
        fs::read_dir(folder.path()).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    assert_eq!(left.len(), 2, "{left:?}");
}

#[test]
fn what_others_keep_in_a_folder_stays() {
    let folder = TempDir::new().unwrap();
    let at = folder.path();
    fs::create_dir_all(at.join("work/sub")).unwrap();
    fs::write(at.join("work/notes.txt"), "mine").unwrap();
    fs::write(at.join("work/sub/index.html"), "mine").unwrap();
    // into the folder of the shell, twice, the second time with fewer schedules
    let (code, _, err) = shell(
        &format!("cd work && $P predict -q -p 2 -m 2 -s gpipe,1f1b -o . && $P {SMALL} -o ./ && ls notes.txt"),
        at,
    );
    assert_eq!(code, 0, "{err}");
    let work = at.join("work");
    assert!(
        fs::read(work.join("notes.txt")).unwrap() == b"mine"
            && fs::read(work.join("sub/index.html")).unwrap() == b"mine"
    );
    assert!(work.join("index.html").is_file() && !work.join("gpipe-predicted.json").exists());
    // a report of nothing else, written from inside: the shell still stands in the folder that has it
    let line =
        format!("mkdir own && cd own && $P {SMALL} -o . && $P {SMALL} -o . && test -f index.html && test . -ef ../own");
    assert_eq!(shell(&line, at).0, 0);
    // a file of somebody's with a name that a report has
    fs::create_dir(at.join("site")).unwrap();
    fs::write(at.join("site/index.html"), "mine").unwrap();
    let (code, out, err) = shell(&format!("$P run {TINY} -o site"), at);
    assert!(code == 1 && out.is_empty() && err.contains("it holds index.html") && !err.contains("step "), "{err}");
    assert_eq!(names(&at.join("site")), ["index.html"]);
    // a list that names what no report has is not believed
    let list = r#"{"schema_version": 1, "schedules": [], "files": ["notes.txt", "../x", "report.json"]}"#;
    fs::create_dir(at.join("liar")).unwrap();
    fs::write(at.join("liar/report.json"), list).unwrap();
    fs::write(at.join("liar/notes.txt"), "mine").unwrap();
    assert_eq!(shell(&format!("$P {SMALL} -o liar"), at).0, 0);
    assert_eq!(fs::read(at.join("liar/notes.txt")).unwrap(), b"mine");
    // a link to a folder stays a link
    std::os::unix::fs::symlink("own", at.join("latest")).unwrap();
    assert_eq!(shell(&format!("$P {SMALL} -o latest"), at).0, 0);
    assert!(fs::symlink_metadata(at.join("latest")).unwrap().is_symlink() && at.join("own/index.html").is_file());
}

#[test]
fn a_full_disk_leaves_what_was_there() {
    let folder = TempDir::new().unwrap();
    let at = folder.path();
    fs::create_dir(at.join("mixed")).unwrap();
    fs::write(at.join("mixed/notes.txt"), "mine").unwrap();
    assert_eq!(shell(&format!("$P {SMALL} -o out -o mixed -o x.html"), at).0, 0);
    let before = tree(at);
    for signal in ["trap '' XFSZ; ", ""] {
        let line =
            format!("{signal}ulimit -f 20; $P predict -q -p 8 -m 64 -s 1f1b -o out -o mixed -o x.html -o new/er");
        let (code, _, err) = shell(&line, at);
        assert!(code == 1 && err.matches("could not").count() == 4, "{code} {err}");
        assert!(before == tree(at), "{:?}", names(at));
    }
}

#[test]
fn signals_leave_nothing_unfinished() {
    let folder = TempDir::new().unwrap();
    let at = folder.path();
    fs::create_dir(at.join("mixed")).unwrap();
    fs::write(at.join("mixed/notes.txt"), "mine").unwrap();
    let write = "$P predict -q -p 8 -m 200 -s 1f1b,gpipe -o out -o mixed -o x.html -o x.json >/dev/null";
    assert_eq!(shell(write, at).0, 0);
    let unfinished = || -> Vec<String> { names(at).into_iter().filter(|name| name.contains(".pipesim-")).collect() };
    for (number, signal) in ["INT", "TERM", "HUP", "KILL"].into_iter().cycle().take(12).enumerate() {
        let after = 0.2 + 0.1 * number as f64;
        shell(&format!("set -m; {write} & sleep {after}; kill -{signal} $!; wait $!"), at);
        assert!(signal == "KILL" || unfinished().is_empty(), "{signal} after {after} s left {:?}", unfinished());
        for name in unfinished() {
            let _ = fs::remove_dir_all(at.join(name)); // a folder goes with its files
        }
        assert_eq!(names(&at.join("out")), listed(&at.join("out")));
        serde_json::from_slice::<Value>(&fs::read(at.join("x.json")).unwrap()).unwrap();
    }
}

#[test]
fn report_accuracy_writes_one_whole_folder() {
    let folder = TempDir::new().unwrap();
    let accuracy = format!("report accuracy -q -s 1f1b --calibrate-micro 2 {}", TINY.replace("-s 1f1b ", ""));
    let (code, out, err) =
        shell(&format!("$P {accuracy} -o out -o page.html -o - && $P {accuracy} -o out"), folder.path());
    assert!(code == 0 && out.contains('|'), "{err}");
    let out = folder.path().join("out");
    assert_eq!(names(&out), listed(&out));
    assert!(out.join("accuracy.json").is_file() && out.join("accuracy.md").is_file());
    assert!(folder.path().join("page.html").is_file());
}

#[test]
fn rows_are_lines_in_pipes_and_words_are_whole_on_terminals() {
    let folder = TempDir::new().unwrap();
    let name = "a-schedule-with-a-rather-long-name-as-people-give-them-to-files";
    let line = format!("$P schedules 1f1b > {name}.star; $P predict -q -p 2 -m 4 -s {name}.star,interleaved-1f1b");
    let (code, out, err) = shell(&line, folder.path());
    assert_eq!(code, 0, "{err}");
    let table: Vec<&str> = out.lines().skip_while(|line| !line.starts_with("schedule")).collect();
    assert!(table[0].contains("bubble over ideal") && table[0].contains("peak activations"), "{out}");
    assert_eq!(table.len(), 4, "{out}");
    assert!(!out.contains('…') && table[3].starts_with("interleaved-1f1b "), "{out}");
    // as COLUMNS says, and on terminals of this width, where there is a program that makes one
    let predict = "$P predict -q -p 2 -m 4 -s interleaved-1f1b";
    for columns in [30, 60, 80, 120, 300] {
        for line in [
            format!("export COLUMNS={columns}; {predict}"),
            format!(
                "command -v script >/dev/null || exit 77; script -qec \"stty cols {columns}; {predict}\" /dev/null"
            ),
        ] {
            let (code, out, _) = shell(&line, folder.path());
            if code == 77 {
                continue;
            }
            let table: Vec<&str> = out.lines().skip_while(|line| !line.starts_with("schedule")).collect();
            for word in ["interleaved-1f1b", "activations", "schedule", "makespan"] {
                let is_there =
                    table.iter().any(|line| line.split_whitespace().any(|found| found.trim_end_matches(':') == word));
                assert!(is_there, "{columns} columns break {word}: {out}");
            }
            let widest = table.iter().map(|line| line.chars().count()).max().unwrap();
            assert!(widest <= columns, "{columns} columns: {out}");
        }
    }
}

#[test]
fn colours_are_those_of_the_terminal() {
    let folder = TempDir::new().unwrap();
    let drawn = |environment: &str, more: &str| shell(&format!("{environment} $P {SMALL} {more}"), folder.path()).1;
    for (environment, more, wanted) in [
        ("TERM=xterm COLORTERM=truecolor", "--color always", "\x1b[48;2;"),
        ("TERM=xterm-256color", "--color always", "\x1b[48;5;"),
        ("TERM=linux", "--color always", "\x1b[104m"),
        ("TERM=xterm COLORTERM=24bit", "--color always", "\x1b[48;2;"),
        ("TERM=xterm-direct", "--color always", "\x1b[48;2;"),
        ("TERM=screen.xterm-256color COLORTERM=yes", "--color always", "\x1b[48;5;"),
        ("TERM=vt100 COLORTERM=truecolor", "--color always", "\x1b[48;5;"),
        ("TERM=dumb", "--color always", "\x1b[48;5;"),
        ("TERM=wyse60", "--color always", "\x1b[48;5;"),
        ("", "--color always", "\x1b[48;5;"),
        ("CLICOLOR_FORCE=1 TERM=xterm-256color", "", "\x1b[48;5;"),
        ("NO_COLOR=1 TERM=xterm-256color", "--color always", "\x1b[48;5;"),
    ] {
        assert!(drawn(environment, more).contains(wanted), "{environment} {more}");
    }
    for (environment, more) in [
        ("TERM=xterm-256color COLORTERM=truecolor", ""),
        ("CLICOLOR_FORCE=1 NO_COLOR=1 TERM=xterm-256color", ""),
        ("CLICOLOR_FORCE=0 TERM=xterm-256color", ""),
        ("CLICOLOR_FORCE=1 TERM=xterm-256color", "--color never"),
    ] {
        assert!(!drawn(environment, more).contains('\x1b'), "{environment} {more}");
    }
}

#[test]
fn gpus_are_mentioned_where_somebody_may_miss_them() {
    let folder = TempDir::new().unwrap();
    let run = format!("env -u VIRTUAL_ENV -u CONDA_PREFIX $P run {} -o -", TINY.replace("--device cpu ", ""));
    let (_, _, verbose) = shell(&format!("{run} -v"), folder.path());
    if Path::new("/dev/nvidiactl").exists() || !verbose.contains("device: cpu") {
        return; // a machine that has some
    }
    let (code, _, err) = shell(&run, folder.path());
    assert!(code == 0 && !err.to_lowercase().contains("cuda") && !err.contains("NVIDIA"), "{err}");
    assert!(shell(&format!("CUDA_HOME=/none {run}"), folder.path()).2.contains("cuda"));
}

#[test]
fn strangers_steer_no_terminal_and_fill_none() {
    let folder = TempDir::new().unwrap();
    let text = r#"fail("\x1b]0;owned\x07\x1b[2J" + "x" * 10000000)"#;
    fs::write(folder.path().join("f.star"), format!("def schedule(p, m, v):\n    {text}\n")).unwrap();
    let escapes = "$'\\e[31m\\e]0;owned\\a\\x9b'";
    for line in [
        "$P predict -p 2 -m 2 -s f.star".to_string(),
        format!("$P predict -p {escapes} -m 2"),
        format!("$P predict -p 2 -m 2 -s {escapes}"),
        format!("$P predict -p 2 -m 2 -o {escapes}.eps"),
        format!("$P predict -p 2 -m 2 -o none/{escapes}.svg"),
        format!("$P compare {escapes}"),
        format!("$P schedules {escapes}"),
        format!("$P {escapes}"),
        format!("cp f.star {escapes}.star; $P check -p 2 -m 2 -s ./{escapes}.star"),
    ] {
        let (code, out, err) = shell(&line, folder.path());
        assert!(code != 0 && !err.is_empty() && err.len() < 20_000, "{line}: {code}, {} bytes", err.len());
        let controls = |text: &str| text.chars().any(|c| c.is_control() && !matches!(c, '\n' | '\t'));
        assert!(!controls(&out) && !controls(&err), "{line}: {err:?}");
    }
    // names of files in tables and JSON
    let line = format!("$P schedules 1f1b > {escapes}$'\\n'.star; $P predict -q -p 2 -m 2 -s ./*owned*.star");
    for format in ["table", "md", "json"] {
        let (_, out, _) = shell(&format!("{line} --format {format}"), folder.path());
        assert!(!out.chars().any(|c| c.is_control() && c != '\n'), "{format}: {out:?}");
    }
}

#[test]
fn a_file_that_a_timeline_would_replace_is_found_before_measuring() {
    let folder = TempDir::new().unwrap();
    assert_eq!(shell("$P predict -q -p 2 -m 2 -s gpipe -o out", folder.path()).0, 0);
    fs::write(folder.path().join("out/1f1b-measured.json"), "mine").unwrap();
    let run = "$P run -p 2 -m 2 -s 1f1b --device timed --steps 1 --format json -o out";
    let (code, out, err) = shell(run, folder.path());
    assert!(code == 1 && out.is_empty() && err.contains("it holds 1f1b-measured.json"), "{code} {out} {err}");
    assert_eq!(fs::read(folder.path().join("out/1f1b-measured.json")).unwrap(), b"mine");
}

#[test]
fn a_link_to_nothing_yet_is_followed() {
    let folder = TempDir::new().unwrap();
    std::os::unix::fs::symlink("later.svg", folder.path().join("link.svg")).unwrap();
    assert_eq!(shell("$P predict -q -p 2 -m 2 -s 1f1b -o link.svg", folder.path()).0, 0);
    assert!(fs::symlink_metadata(folder.path().join("link.svg")).unwrap().is_symlink());
    assert!(fs::symlink_metadata(folder.path().join("later.svg")).unwrap().is_file());
}

/// Two timelines of one name are paired; that they are of different orders is told, and of the same order is not.
#[test]
fn different_orders_of_one_name_are_told() {
    let folder = tempfile::tempdir().unwrap();
    let orders = ["m * F + m * B", "m * (F + B)", "F + (m - 1) * (F + B) + B"];
    let written = |order: &str, factor: u32, name: &str| {
        fs::write(folder.path().join("mine.star"), format!("def device(r, p, m):\n    return {order}\n")).unwrap();
        let line = format!("$P predict -q -p 2 -m 6 -s mine.star --costs F={factor},B={} -o {name}", 2 * factor);
        let (code, _, said) = shell(&line, folder.path());
        assert_eq!(code, 0, "{said}");
    };
    let measured = |name: &str| {
        let path = folder.path().join(name);
        let text = fs::read_to_string(&path).unwrap();
        fs::write(&path, text.replace("\"source\":\"predicted\"", "\"source\":\"measured\"")).unwrap();
    };
    let told = |line: &str| {
        let (code, _, said) = shell(line, folder.path());
        assert_eq!(code, 0, "{said}");
        said.contains("they are of different orders")
    };
    for (at, predicted) in orders.iter().enumerate() {
        for (other, run) in orders.iter().enumerate() {
            written(predicted, 1, "predicted.json");
            written(run, 3, "measured.json");
            measured("measured.json");
            assert_eq!(told("$P compare predicted.json measured.json"), at != other, "{predicted} against {run}");
        }
    }
    // overlapped pairs, several chunks and free ops, in orders that do not follow from costs
    let all = "$P predict -q -p 4 -m 8 -s 1f1b,interleaved-1f1b,interleaved-zb,zb-v,dualpipe,dualpipe-v";
    for (costs, name) in [("F=1,I=1,W=0", "predicted.json"), ("F=2,I=2,W=1", "measured.json")] {
        assert_eq!(shell(&format!("{all} --costs {costs} -o {name}"), folder.path()).0, 0);
    }
    measured("measured.json");
    assert!(!told("$P compare predicted.json measured.json"));
}

/// Costs in nanoseconds and in seconds: what `compare` reads has the figures that `predict` printed.
#[test]
fn costs_of_any_size_are_the_same_in_files() {
    let folder = TempDir::new().unwrap();
    for unit in ["e9", "e6", "e3", "", "e-3", "e-9", "e-12"] {
        let costs = format!("F=1.5{unit},I=1{unit},W=1.25{unit},comm=0.4{unit}");
        let line = format!(
            "$P predict -q -p 4 -m 8 -s 1f1b,zb-h1 --costs {costs} --format json -o t.json && $P compare -q t.json --format json"
        );
        let (code, out, err) = shell(&line, folder.path());
        assert_eq!(code, 0, "{err}");
        let found: Vec<Value> =
            serde_json::Deserializer::from_str(&out).into_iter::<Value>().map(Result::unwrap).collect();
        for (number, predicted) in found[0]["predictions"].as_array().unwrap().iter().enumerate() {
            let compared = &found[1]["schedules"][number]["predicted"];
            for figure in ["makespan", "span", "bubble", "lower_bound", "gap_to_bound"] {
                let [a, b] = [predicted, compared].map(|side| side[figure].as_f64().unwrap());
                assert!((a - b).abs() <= 1e-9 * a.abs(), "{unit} {figure}: {a} {b}");
            }
        }
    }
}

/// Copies, collectives and passes of a vocabulary have names of their own, and the first two rows.
#[test]
fn what_is_no_forward_or_backward_is_drawn_by_its_name() {
    let folder = tempfile::tempdir().unwrap();
    let svg = folder.path().join("x.svg");
    let copies = "-s 1f1b-offload:ahead=1,least=2 --costs F=1,copy=0.6";
    let gathers = "-s interleaved-1f1b --costs unshard=1,reduce=1 --max-active-stages 1";
    let passes = "-s 1f1b-vocab --costs F=4,S=2,IF=1,IB=1";
    for (asked, names, rows) in [
        (copies, vec!["O offload", "L reload"], vec!["offload", "reload"]),
        (
            gathers,
            vec!["u gather of parameters (UNSHARD)", "r reduction of gradients (REDUCE_GRAD)"],
            vec!["gather", "reduce"],
        ),
        (passes, vec!["S vocabulary head", "E embedding (IF)", "G embedding's gradient (IB)"], vec![]),
    ] {
        let (code, drawn, _) = pipesim(&format!("predict -p 2 -m 4 {asked} -q -o {}", svg.display()));
        assert_eq!(code, 0, "{asked}");
        let svg = std::fs::read_to_string(&svg).unwrap().replace("&#39;", "'").replace("&apos;", "'");
        for name in names {
            assert!(drawn.contains(name) && svg.contains(&format!(">{name}<")), "{asked}: no {name}");
        }
        assert!(!drawn.contains("step ops") && !svg.contains(">step ops<"), "{asked}");
        let of_device = drawn.lines().filter(|line| line.contains('│')).count();
        // Device 0 has a line per row; the last device's activations stay where they are.
        assert!(of_device >= 2 + rows.len() && (rows.is_empty() == (of_device == 2)), "{drawn}");
        assert!(rows.iter().all(|row| svg.contains(&format!(">{row}<"))), "{asked}");
    }
}
