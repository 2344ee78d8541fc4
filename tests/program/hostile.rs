//! Schedule files that mean harm, and files that are not what they should be: refused within bounds, in words that help.

use crate::support::PROGRAM;
use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const PLAIN: &str = "def device(r, p, m):\n    return m * (F + B)\n";

/// Lists that hold a list twice, which holds a list twice, and so on: 2^45 in all.
const SHARED: &str = "def shared():\n    a = [1]\n    for i in range(45):\n        a = [a, a]\n    return a\n";

/// What a process came to.
struct End {
    code: Option<i32>,
    told: String,
    /// Most memory that it held, as the system counts it.
    peak_kib: u64,
}

/// Runs a line of the shell's with `$P` for pipesim, for ten seconds of the processor's at most.
fn end(line: &str) -> End {
    let mut shell = Command::new("bash");
    shell.arg("-c").arg(format!("ulimit -t 10; {line}")).env("P", PROGRAM).stdout(Stdio::null()).stderr(Stdio::piped());
    let mut child = shell.spawn().unwrap();
    let status = format!("/proc/{}/status", child.id());
    let mut stderr = child.stderr.take().unwrap();
    let told = std::thread::spawn(move || {
        let mut bytes = Vec::new();
        stderr.read_to_end(&mut bytes).unwrap();
        String::from_utf8_lossy(&bytes).into_owned()
    });
    let (mut peak_kib, begin) = (0, Instant::now());
    let code = loop {
        let text = fs::read_to_string(&status).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap_or_default();
        peak_kib = line.trim().trim_end_matches(" kB").parse().unwrap_or(0).max(peak_kib);
        if let Some(status) = child.try_wait().unwrap() {
            break status.code();
        }
        if begin.elapsed() > Duration::from_secs(120) {
            child.kill().unwrap();
        }
        std::thread::sleep(Duration::from_millis(1));
    };
    End { code, told: told.join().unwrap(), peak_kib }
}

/// Files by name, with what is said of each.
fn hostile() -> Vec<(&'static str, String, &'static str)> {
    let made = |text: &str| format!("def make():\n{text}x = make()\n{PLAIN}");
    let of_shared = |text: &str| format!("{SHARED}{text}\n{PLAIN}");
    let time = "was stopped: evaluating it took more than its budget of 5 s of computing";
    let memory = "was stopped: evaluating it took more than its budget of 1280 MiB of memory";
    let nested = "expected at most 20000 nested operators and brackets";
    vec![
        ("compare", of_shared("x = shared() == shared()"), time),
        ("digits", format!("x = [int('9' * 10000000) for i in range(100)]\n{PLAIN}"), time),
        ("count", made("    s = 'ab' * 5000000\n    for i in range(10000000):\n        s.count('a')\n"), time),
        ("powers", made("    x = 3\n    for i in range(60):\n        x = x * x\n"), time),
        ("find", made("    s = 'a' * 10000000\n    for i in range(10000000):\n        s.find('aaaaaaaab')\n"), time),
        ("largest", format!("x = [max(range(2000000000)) for i in range(1000)]\n{PLAIN}"), time),
        ("times", format!("x = 'x' * 2000000000\n{PLAIN}"), memory),
        ("printed", of_shared("x = repr(shared())"), "budget"),
        ("replaced", format!("x = ('x' * 1000000).replace('x', 'y' * 100000)\n{PLAIN}"), memory),
        ("joined", format!("x = ('y' * 1000000).join(['x'] * 100000)\n{PLAIN}"), memory),
        ("split", format!("x = [('x,' * 10000000).split(',') for i in range(1000)]\n{PLAIN}"), "budget"),
        ("sorted", format!("x = [sorted(range(10000000)) for i in range(1000)]\n{PLAIN}"), "budget"),
        ("spread", format!("def f(*a):\n    return len(a)\nx = f(*range(1000000000))\n{PLAIN}"), "budget"),
        ("formatted", made("    s = 'x'\n    for i in range(60):\n        s = '{0}{0}{0}'.format(s)\n"), "budget"),
        ("said", of_shared("fail(shared())"), "budget"),
        ("within", made("    x = []\n    for i in range(10000000):\n        x = [x]\n    return repr(x)\n"), "budget"),
        ("keys", format!("x = {{i: str(i) * 10 for i in range(40000000)}}\n{PLAIN}"), "budget"),
        ("recursion", format!("def f(x):\n    return f([x])\nx = f(0)\n{PLAIN}"), "recursion"),
        ("brackets", format!("x = {}{}\n{PLAIN}", "[".repeat(500_000), "]".repeat(500_000)), nested),
        ("minus", format!("x = {}1\n{PLAIN}", "-".repeat(1_000_000)), nested),
        ("functions", format!("x = {}1\n{PLAIN}", "lambda:".repeat(140_000)), nested),
        ("calls", format!("x = int{}\n{PLAIN}", "()".repeat(500_000)), nested),
        ("branches", format!("if 0:\n    pass\n{}{PLAIN}", "elif 0:\n    pass\n".repeat(50_000)), nested),
        ("line", format!("x = [{}y]\n{PLAIN}", "1,".repeat(500_000)), "Variable `y` not found"),
        ("devices", format!("placement = custom([0, 1, 2, 3] * 10000000)\n{PLAIN}"), "at most 64 stages per device"),
        ("phases", format!("N = 'x' * 1000000\n{}", PLAIN.replace("(F", "phase(N, F")), "at most 100 characters"),
        ("returned", format!("{SHARED}X = shared()\ndef device(r, p, m):\n    return X\n"), "found [[[["),
        ("placed", format!("{SHARED}placement = shared()\n{PLAIN}"), "placed.star:6: expected placement = linear"),
        ("default", format!("{SHARED}X = shared()\ndef device(r, p, m, v = X):\n    return m * (F + B)\n"), "budget"),
        (
            "long",
            "def device(r, p, m):\n    return first(0, 1000000000 * (1000000000 * first(0, F)))\n".to_string(),
            "continues after",
        ),
        ("refusal", "def device(r, p, m):\n    require(False, '\\033[2J' * 10000000)\n".to_string(), "more characters"),
        ("failure", "fail('\\033[2J' * 10000000)\n".to_string(), "is not a schedule"),
    ]
}

#[test]
fn every_hostile_file_ends_within_ten_seconds_and_one_and_a_half_gib() {
    let folder = tempfile::tempdir().unwrap();
    let check = |(name, text, expected): &(&str, String, &str)| {
        let path = folder.path().join(format!("{name}.star"));
        fs::write(&path, text).unwrap();
        let begin = Instant::now();
        let end = end(&format!("exec $P predict -p 4 -m 8 -q -s {}", path.display()));
        let beginning: String = end.told.chars().take(300).collect();
        println!("{name}: {:.1} s, {} MiB: {beginning}", begin.elapsed().as_secs_f64(), end.peak_kib >> 10);
        let clean = end.told.len() < 10_000 && !end.told.contains(|c: char| c.is_control() && c != '\n');
        let good = end.code == Some(3) && end.told.starts_with("error: ") && end.told.contains(expected);
        let named = end.told.contains(&format!("{name}.star")) || end.told.contains(&format!("{name} does not exist"));
        (good && named && clean && end.peak_kib <= 3 << 19).then_some(()).ok_or((
            name.to_string(),
            end.code,
            end.peak_kib,
            beginning,
        ))
    };
    let files = hostile();
    let (even, odd): (Vec<_>, Vec<_>) = files.iter().enumerate().partition(|(number, _)| number % 2 == 0);
    let all = |files: Vec<(usize, &(&'static str, String, &'static str))>| -> Vec<_> {
        files.into_iter().filter_map(|(_, file)| check(file).err()).collect()
    };
    let wrong = std::thread::scope(|scope| {
        let beside = scope.spawn(|| all(odd));
        [all(even), beside.join().unwrap()].concat()
    });
    assert!(wrong.is_empty(), "(file, exit code, KiB, said): {wrong:#?}");
}

#[test]
fn evaluation_beyond_the_memory_of_the_machine_says_so() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("big.star");
    fs::write(&path, format!("x = 'x' * 1000000000\n{PLAIN}")).unwrap();
    let end = end(&format!("ulimit -v 900000; exec $P predict -p 4 -m 8 -q -s {}", path.display()));
    assert!(end.code == Some(5) && end.told.starts_with("error: out of memory"), "{:?}: {}", end.code, end.told);
}

#[test]
fn long_sums_and_lists_are_no_nesting() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("honest.star");
    let sum = ["F", "B"].repeat(4000).join(" + ");
    let list = "(F if 1 else B), ".repeat(50_000);
    let text = format!("x = [{list}]\ny = {sum}\n{}{PLAIN}", "if 1:\n    pass\nelif 0:\n    pass\n".repeat(100));
    fs::write(&path, text).unwrap();
    let end = end(&format!("exec $P predict -p 4 -m 8 -q -s {}", path.display()));
    assert!(end.code == Some(0), "{}", end.told);
}

/// Exit code 2 or 3, and all of `parts` said in few words.
fn says(line: &str, folder: &Path, parts: &[&str]) {
    let End { code, told, .. } = end(&format!("cd {} && {line}", folder.display()));
    let bounded = told.len() < 3000 && !told.contains(|c: char| c.is_control() && c != '\n');
    let said = parts.iter().all(|part| told.contains(part));
    assert!(matches!(code, Some(2 | 3)) && bounded && said, "{line}: {code:?}, expected {parts:?}, found {told}");
}

#[test]
fn what_is_no_file_is_named_for_what_it_is() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    fs::create_dir(folder.join("d.star")).unwrap();
    fs::write(folder.join("utf16.star"), [0xff, 0xfe, b'd', 0]).unwrap();
    fs::write(folder.join("plain.star"), PLAIN).unwrap();
    let predict = "exec $P predict -p 4 -m 8 -q";
    says(&format!("{predict} -s d.star"), folder, &["schedule file at d.star, found a folder; name a file in it"]);
    says(&format!("{predict} -s none.star"), folder, &["none.star, found none; check the path"]);
    says(&format!("{predict} -s utf16.star"), folder, &["found invalid UTF-8 on line 1", "UTF-16", "save it as UTF-8"]);
    says(&format!("{predict} -s /dev/zero"), folder, &["found a device, which may never end"]);
    says(&format!("{predict} --profile d.star"), folder, &["cannot read d.star: expected a file, found a folder"]);
    says(
        &format!("{predict} --profile none"),
        folder,
        &["cannot read none: expected a file, found none; check the path"],
    );
    says("exec $P compare d.star", folder, &["cannot read d.star: expected a file, found a folder"]);
    let run = "exec $P run -q -p 1 -m 1 -s 1f1b --steps 1";
    says(&format!("{run} --data d.star"), folder, &["data file at d.star, found a folder; name a file in it"]);
    says(&format!("{run} --data none"), folder, &["data file at none, found none; check the path"]);
    says(&format!("mkfifo pipe; {run} --data pipe"), folder, &["found a pipe or a device", "copy it to a file"]);
    for pipe in ["-s /dev/stdin <plain.star", "-s <(cat plain.star)", "-s ./named.star"] {
        let named = if pipe.contains("named") { "mkfifo named.star; cat plain.star > named.star & " } else { "" };
        let end = end(&format!("cd {}; {named} {predict} {pipe}", folder.display()));
        assert!(end.code == Some(0), "{pipe}: {}", end.told);
    }
}

#[test]
fn a_refused_schedule_says_where_and_what_to_write() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let predict = "exec $P predict -p 8 -m 8 -q";
    let listed = "expected placement = linear, v_shape, loop, zigzag, bidirectional";
    for (text, parts) in [
        ("# a\nplacement = 'V'\n", ["t.star:2: ", listed, "found \"V\"; write placement = v_shape, without quotes"]),
        ("placement = 'ring'\n", ["t.star:1: ", listed, "found \"ring\"; write one of them"]),
        ("\n\nplacement = [0, 1]\n", ["t.star:3: ", listed, "found [0, 1]"]),
        ("def placement(p):\n    return 'loop'\n", ["t.star:1: ", listed, "found \"loop\"; write placement = loop"]),
        ("placement = zigzag(1000000)\n", ["t.star", "at most 64 stages per device", "--chunks"]),
    ] {
        fs::write(folder.join("t.star"), format!("{text}{PLAIN}")).unwrap();
        says(&format!("{predict} -s t.star"), folder, &parts);
    }
    for ops in [1, 10, 15, 16, 127] {
        let budget = format!("the budget is {ops} ops; take fewer micro-batches or raise --max-ops");
        says(&format!("{predict} -s 1f1b --max-ops {ops}"), folder, &["has at least 128 ops", &budget]);
    }
    says("exec $P export -p 2 -m 2 --to json", folder, &["name it with --schedule"]);
    says(
        "! $P export --help | grep 'default: naive' && $P export --help | grep 'The schedule to write' >&2; exit 3",
        folder,
        &["The schedule"],
    );
}

#[test]
fn tables_that_are_no_schedules_are_refused_cell_by_cell() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let cases: [(&str, Vec<u8>, &[&str]); 11] = [
        ("escape", b"0F0,\x1b[2J\x07,0B0\n".to_vec(), &["row 1", "cell 2", "'\\u{1b}[2J\\u{7}'"]),
        ("long", [b"0F0,".to_vec(), vec![b'x'; 50 << 20]].concat(), &["row 1", "cell 2", "found 'xxxx"]),
        ("wide", b"0F0,0B0,".repeat(1 << 20), &["row 1", "cell 3"]),
        ("nul", b"0F0,\0,0B0\n".to_vec(), &["row 1", "cell 2", "\\u{0}"]),
        ("zeros", vec![0; 10 << 20], &["row 1", "cell 1"]),
        ("ragged", b"0F0,0F1,0B0,0B1\n1F0\n".to_vec(), &["row ", "missing"]),
        ("hole", b"0F0,0B0\n\n1F0,1B0\n".to_vec(), &["row 2", "remove the empty row"]),
        ("quote", b"0F0,\"0B0\n".to_vec(), &["row 1", "cell 2", "close or remove the quote"]),
        ("utf16", b"\xff\xfe0\0F\0".to_vec(), &["line 1", "UTF-16", "save it as UTF-8"]),
        ("latin", b"0F0,0B0\n1F0,\xe9\n".to_vec(), &["line 2", "UTF-8"]),
        ("empty", Vec::new(), &["no op at all", "_dump_csv"]),
    ];
    for (name, bytes, parts) in cases {
        fs::write(folder.join("t.csv"), bytes).unwrap();
        let line = "exec $P predict -p 1 -m 1 -q -s t.csv";
        println!("{name}");
        says(line, folder, &[&["t.csv"], parts].concat());
    }
    for text in ["\u{feff}0F0,0B0\n", "0F0,0B0\r\n", "\u{feff}\"0F0\", \"0B0\",,\r\n\r\n", "0F0,0B0"] {
        fs::write(folder.join("t.csv"), text).unwrap();
        let end = end(&format!("cd {}; exec $P predict -p 1 -m 1 -q -s t.csv", folder.display()));
        assert!(end.code == Some(0), "{text:?}: {}", end.told);
    }
}
