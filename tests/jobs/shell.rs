//! Launch scripts are read as bash expands them: bash itself is the second engine, with programs that print their arguments.

use pipesim_jobs::shell::{commands, launch};
use pipesim_jobs::{JobError, Missing, SourceFile, Sources};
use std::io::Write;
use std::process::{Command, Stdio};

fn sources(text: &str, arguments: &[&str]) -> Sources {
    Sources {
        files: vec![SourceFile { name: "train.sh".to_string(), text: text.to_string() }],
        arguments: arguments.iter().map(ToString::to_string).collect(),
        ..Sources::default()
    }
}

/// Argument vectors of `torchrun` as bash has them; `None` without bash.
fn bash(text: &str, arguments: &[&str]) -> Option<Vec<Vec<String>>> {
    let stub = "torchrun() { printf 'torchrun'; [ $# -eq 0 ] || printf '\\001%s' \"$@\"; printf '\\002'; }\n";
    let run = Command::new("bash")
        .args(["--noprofile", "--norc", "-s", "--"])
        .args(arguments)
        .env_clear()
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn();
    let mut run = run.ok()?;
    run.stdin.take()?.write_all(format!("{stub}{text}").as_bytes()).ok()?;
    let output = String::from_utf8(run.wait_with_output().ok()?.stdout).ok()?;
    let vectors = output.split_terminator('\u{2}').filter_map(|row| row.find("torchrun").map(|at| &row[at..]));
    Some(vectors.map(|row| row.split('\u{1}').map(str::to_string).collect()).collect())
}

fn read(text: &str, arguments: &[&str]) -> Vec<Vec<String>> {
    let all = commands(&sources(text, arguments)).unwrap_or_else(|error| panic!("{text}: {error}"));
    let all = all.into_iter().filter(|command| command.words[0].text == "torchrun");
    all.map(|command| command.words.into_iter().map(|word| word.text).collect()).collect()
}

/// Scripts in the forms of public ones, with the last words of the first command as bash prints them.
const SCRIPTS: &[(&str, &[&str], &str)] = &[
    (
        "A=(--num-layers 32 # depth\n  --swiglu\n)\nA+=(--seq 4096)\ntorchrun ${A[@]} x.py",
        &[],
        "torchrun --num-layers 32 --swiglu --seq 4096 x.py",
    ),
    ("N=${1:-8}\nT=$(($N * 2))\ntorchrun --a $N --b $T \\\n  # note \\\n  --c 3\n", &["4"], "torchrun --a 4 --b 8"),
    (
        "if [ $1 = 7B ]; then L=32\nelif [ $1 = 70B ]; then L=80; fi\neval \"torchrun --l ${L} '--x y'\"",
        &["70B"],
        "torchrun --l 80 --x y",
    ),
    ("opt=\" \\\n   --a 1 \\\n   --b 2\"\ntorchrun x.py $opt", &[], "torchrun x.py --a 1 --b 2"),
    (
        "while [[ $# -gt 0 ]]; do case $1 in --tp) TP=$2; shift 2;; *) shift;; esac; done\ntorchrun $TP",
        &["--x", "--tp", "4"],
        "torchrun 4",
    ),
    ("f() { local a=$1; shift; torchrun $a \"$@\" $#; }\nf 1 '2 3' 4", &[], "torchrun 1 2 3 4 2"),
    ("declare -A M=([a]=1 [b]=\"2 3\")\nK=b\nx=(${M[$K]})\ntorchrun ${x[1]} ${#x[@]}", &[], "torchrun 3 2"),
    (
        "P=/a/b/model-7b.json\ntorchrun ${P##*/} ${P%.json} ${P/model/m} ${P^^} ${#P} ${P:3:1} ${P: -4}",
        &[],
        "torchrun model-7b.json /a/b/model-7b /a/b/m-7b.json /A/B/MODEL-7B.JSON 18 b json",
    ),
    ("for n in 1 2; do for m in {a,b}; do torchrun $n$m; done; done", &[], "torchrun 1a"),
    (
        "X=$(cat <<EOF\n--a $((1+2))\nEOF\n)\ntorchrun $X `echo b` $(printf '%s-' c d) $(basename /x/y.sh .sh) $(dirname /x/y)",
        &[],
        "torchrun --a 3 b c-d- y /x",
    ),
    ("((n = 3, n += 2)); let m=n*2\n[[ $n -eq 5 && $m == 1* ]] && torchrun $n $m || torchrun no", &[], "torchrun 5 10"),
    (
        "cat > /dev/null <<'E'\n$x\nE\nset -- a b; torchrun \"$*\" ${3:-c} ${Z+z} ${Z:=q} $Z \"\"",
        &[],
        "torchrun a b c q q ",
    ),
    ("x=5; (x=6); y=$(x=7; echo $x); torchrun $x $y 2>&1 | cat & wait", &[], "torchrun 5 7"),
    ("IFS=',' read -ra L <<< '1,2,3'\ntorchrun ${L[2]} ${L[@]:1:2}", &[], "torchrun 3 2 3"),
    ("while IFS= read -r x; do torchrun $x; done <<< $'a\nb'\n", &[], "torchrun a"),
    ("while read x; do torchrun $x x{0..0}; done < <(echo 2)", &[], "torchrun 2 x0"),
    ("x=$(cat <<'E'\na $b\nE\n); torchrun \"${@:2}\" \"$x\" {08..10}", &["1", "2", "3"], "torchrun 2 3 a $b 08 09 10"),
    ("x=$(seq 3 | tr '\\n' ',')\ntorchrun $x ${x%,}", &[], "torchrun 1,2,3, 1,2,3"),
    ("printf 'c 1\nd 2\n' | while read k v; do [ $k = c ] || torchrun $k $v; done", &[], "torchrun d 2"),
    ("\u{feff}export A=1 B='x y'\r\ntorchrun $A \"$B\" \\\r\n  --c\r\n", &[], "torchrun 1 x y --c"),
    (
        "v='1F1B-7'; if [[ $v =~ ^([0-9])F.*-([0-9]+)$ ]]; then torchrun ${BASH_REMATCH[1]} ${BASH_REMATCH[2]}; fi",
        &[],
        "torchrun 1 7",
    ),
];

#[test]
fn scripts_expand_as_in_bash() {
    for (text, arguments, expected) in SCRIPTS {
        let own = read(text, arguments);
        assert_eq!(own[0].join(" "), *expected, "{text}");
        if text.contains('\r') {
            continue; // bash itself keeps the carriage return
        }
        if let Some(theirs) = bash(text, arguments) {
            assert_eq!(own, theirs, "{text}");
        }
    }
}

#[test]
fn the_training_command_is_found_behind_launchers() {
    let cases: &[(&str, &str, Option<u32>)] = &[
        ("torchrun --nproc_per_node=8 --nnodes 4 pretrain_gpt.py --num-layers 2", "pretrain_gpt.py", Some(32)),
        ("torchrun --nproc-per-node 8 --nnodes 1:4 pretrain_gpt.py --num-layers 2", "pretrain_gpt.py", None),
        (
            "#SBATCH --nodes=4 --ntasks-per-node=8\nsrun -l bash -c \"python -u train.py --num-layers 2\"",
            "train.py",
            Some(32),
        ),
        ("mpirun -np 16 python train.py --num-layers 2", "train.py", Some(16)),
        ("srun -N 2 --ntasks-per-node=4 numactl -m 0 python train.py --num-layers 2", "train.py", Some(8)),
        ("NPROC_PER_NODE=4 megatron sft --num-layers 2", "megatron sft", Some(4)),
        (
            "python tools/preprocess_data.py --input x\npython -m torch.distributed.run --nproc_per_node 2 train.py --num-layers 2",
            "train.py",
            Some(2),
        ),
        (
            "sbatch <<EOF\n#!/bin/bash\n#SBATCH -N 2\n#SBATCH --ntasks-per-node 8\nsrun python train.py --num-layers 2\nEOF",
            "train.py",
            Some(16),
        ),
        (
            "cat > go.sh <<'EOF'\ntorchrun --nproc_per_node $1 train.py --num-layers 2\nEOF\nbash go.sh 4",
            "train.py",
            Some(4),
        ),
        ("--num-layers 2 --lr -1", "", None),
    ];
    for (text, program, world) in cases {
        let found = launch(&sources(text, &[])).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!((&*found.program, found.world), (*program, *world), "{text}");
        assert_eq!(found.settings.value("num_layers"), Some("2"), "{text}");
    }
}

#[test]
fn what_is_set_elsewhere_is_named() {
    let text = "NN=${NODES}\nif [ $1 = big ]; then L=80; else L=32; fi\nG=$(nvidia-smi -L | wc -l)\n\
                torchrun --nnodes $NN pretrain.py --l $L \\\n --g $G --x 1";
    let found = launch(&sources(text, &[])).unwrap();
    let needs = Missing::Variable { name: "NODES".to_string(), used_by: "--nnodes".to_string() };
    assert_eq!((found.world, found.missing), (None, vec![needs]));
    assert_eq!(found.settings.get("l").unwrap().unresolved, ["1"]);
    assert_eq!(found.settings.get("g").unwrap().unresolved, ["$(nvidia-smi -L | wc -l)"]);
    assert_eq!(found.settings.get("x").unwrap().place, "train.sh:5");
    let found = launch(&sources("srun bash -c \"cd $X\ntorchrun train.py \\\n  --x 1\"\n", &[])).unwrap();
    assert_eq!(found.settings.get("x").unwrap().place, "train.sh:3");
    let absent = launch(&sources("bash conf/run.sh", &[])).unwrap_err();
    assert_eq!(absent, JobError::Missing(vec![Missing::File { path: "conf/run.sh".to_string() }]));
}

#[test]
fn hostile_scripts_end_with_an_error_or_a_reading() {
    let doubling = "x=aaaaaaaaaaaaaaaa; while true; do x=$x$x; done";
    let nested = ["(", "$(", "${a:-", "\"$(", "if a; then ", "[[ ( ", "{ ", "x=$((", "`", "a && "];
    let mut texts: Vec<String> = nested.iter().map(|open| open.repeat(5000)).collect();
    texts.extend(["f() { f; }; f", "eval \"$0\"; bash train.sh", doubling, "x=x; echo $((x))"].map(str::to_string));
    for text in texts {
        let _ = commands(&sources(&text, &[]));
    }
    // a generator of its own, so that the same texts come every time
    let mut seed = 7_u64;
    let mut random = |below: usize| {
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        usize::try_from(seed >> 33).unwrap() % below
    };
    let pieces: Vec<char> = "${}()[]\"'`\\;&|<>#=+-*@!%/ \nif fi do done case esac 0é".chars().collect();
    for round in 0..2000 {
        let mut chars: Vec<char> = SCRIPTS[round % SCRIPTS.len()].0.chars().collect();
        for _ in 0..1 + random(4) {
            let at = random(chars.len());
            match random(3) {
                0 => drop(chars.remove(at)),
                1 => chars.insert(at, pieces[random(pieces.len())]),
                _ => chars[at] = pieces[random(pieces.len())],
            }
        }
        let text: String = chars.into_iter().collect();
        let _ = (commands(&sources(&text, &["1"])), launch(&sources(&text, &[])));
    }
}
