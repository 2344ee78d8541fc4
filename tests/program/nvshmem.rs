//! NVSHMEM's real library, without a GPU: structures against NVIDIA's headers, every function, and the bootstrap of two
//! processes. The library comes from the PyPI wheel, whose folder `$PIPESIM_CUDA_WHEELS` names.

use crate::support::{again, wheels};
use nvshmem_sys::{Error, Library, SYMBOLS, Status, UniqueId};
use nvshmem_sys::{
    NVSHMEM_CMP_GE, NVSHMEM_SIGNAL_SET, NVSHMEM_STATUS_FULL_MPG, NVSHMEM_STATUS_IS_BOOTSTRAPPED,
    NVSHMEM_STATUS_IS_INITIALIZED, NVSHMEM_STATUS_LIMITED_MPG,
};
use nvshmem_sys::{nvshmemx_init_args_t, nvshmemx_init_attr_t};
use nvshmem_sys::{nvshmemx_uniqueid_args_t, nvshmemx_uniqueid_t};
use std::env;
use std::io::{BufRead, BufReader, Read, Write};
use std::mem::{offset_of, size_of};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::{Duration, Instant};

/// Set in the processes that a test starts: which rank.
const ROLE: &str = "PIPESIM_TEST_NVSHMEM_ROLE";
const LIMIT: Duration = Duration::from_secs(60);

/// `nvidia/nvshmem` of the wheel, or `None` where tests may do without.
fn wheel() -> Option<PathBuf> {
    Some(wheels()?.join("nvidia/nvshmem"))
}

fn open(wheel: &std::path::Path) -> Library {
    Library::open(wheel.join("lib/libnvshmem_host.so.3")).expect("the wheel's library opens without a driver")
}

#[test]
fn the_structures_are_those_of_nvidias_headers() {
    let Some(wheel) = wheel() else { return };
    let folder = tempfile::tempdir().expect("a folder");
    let (source, program) = (folder.path().join("layout.c"), folder.path().join("layout"));
    let stated: [(&str, usize); 18] = [
        ("sizeof(nvshmemx_uniqueid_v1)", size_of::<nvshmemx_uniqueid_t>()),
        ("offsetof(nvshmemx_uniqueid_v1, internal)", offset_of!(nvshmemx_uniqueid_t, internal)),
        ("sizeof(nvshmemx_uniqueid_args_v1)", size_of::<nvshmemx_uniqueid_args_t>()),
        ("offsetof(nvshmemx_uniqueid_args_v1, id)", offset_of!(nvshmemx_uniqueid_args_t, id)),
        ("offsetof(nvshmemx_uniqueid_args_v1, myrank)", offset_of!(nvshmemx_uniqueid_args_t, myrank)),
        ("offsetof(nvshmemx_uniqueid_args_v1, nranks)", offset_of!(nvshmemx_uniqueid_args_t, nranks)),
        ("sizeof(nvshmemx_init_args_v1)", size_of::<nvshmemx_init_args_t>()),
        ("offsetof(nvshmemx_init_args_v1, uid_args)", offset_of!(nvshmemx_init_args_t, uid_args)),
        ("offsetof(nvshmemx_init_args_v1, content)", offset_of!(nvshmemx_init_args_t, content)),
        ("sizeof(nvshmemx_init_attr_v1)", size_of::<nvshmemx_init_attr_t>()),
        ("offsetof(nvshmemx_init_attr_v1, mpi_comm)", offset_of!(nvshmemx_init_attr_t, mpi_comm)),
        ("offsetof(nvshmemx_init_attr_v1, args)", offset_of!(nvshmemx_init_attr_t, args)),
        ("NVSHMEM_SIGNAL_SET", NVSHMEM_SIGNAL_SET as usize),
        ("NVSHMEM_CMP_GE", NVSHMEM_CMP_GE as usize),
        ("NVSHMEM_STATUS_IS_BOOTSTRAPPED", NVSHMEM_STATUS_IS_BOOTSTRAPPED as usize),
        ("NVSHMEM_STATUS_IS_INITIALIZED", NVSHMEM_STATUS_IS_INITIALIZED as usize),
        ("NVSHMEM_STATUS_LIMITED_MPG", NVSHMEM_STATUS_LIMITED_MPG as usize),
        ("NVSHMEM_STATUS_FULL_MPG", NVSHMEM_STATUS_FULL_MPG as usize),
    ];
    let prints: String =
        stated.iter().map(|(line, _)| format!("    printf(\"%zu\\n\", (size_t)({line}));\n")).collect();
    let headers = "#include <assert.h>\n#include <stdbool.h>\n#include <stddef.h>\n#include <stdio.h>\n\
        #include \"device_host/nvshmem_types.h\"\n#include \"device_host_transport/nvshmem_common_transport.h\"\n\
        #include \"device_host_transport/nvshmem_constants.h\"\n";
    std::fs::write(&source, format!("{headers}int main(void) {{\n{prints}}}\n")).expect("a file");
    let mut compiler = Command::new("c++");
    compiler
        .args(["-std=c++17", "-x", "c++", "-w", "-I"])
        .arg(wheel.join("include"))
        .arg(&source)
        .arg("-o")
        .arg(&program);
    let compiled = compiler.output().expect("a C++ compiler");
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let output = Command::new(&program).output().expect("the compiled program");
    let theirs: Vec<usize> =
        String::from_utf8_lossy(&output.stdout).lines().map(|line| line.parse().expect("a number")).collect();
    let differing: Vec<String> = (stated.iter().zip(&theirs))
        .filter(|((_, ours), theirs)| ours != *theirs)
        .map(|((line, ours), theirs)| format!("{line}: ours {ours}, NVIDIA's {theirs}"))
        .collect();
    assert_eq!((differing, theirs.len()), (Vec::new(), stated.len()));
}

#[test]
fn every_function_is_there_and_the_version_is_the_wheels() {
    let Some(wheel) = wheel() else { return };
    let library = open(&wheel);
    assert_eq!(library.status(), Status::NotInitialized);
    let (major, minor, patch) = library.version();
    let site = wheel.parent().and_then(|nvidia| nvidia.parent()).expect("the folder of wheels");
    let names =
        std::fs::read_dir(site).expect("the folder of wheels").map(|entry| entry.expect("an entry").file_name());
    let installed = names.filter_map(|name| {
        let name = name.into_string().ok()?;
        name.strip_prefix("nvidia_nvshmem_cu13-")?.strip_suffix(".dist-info").map(str::to_string)
    });
    for installed in installed {
        assert_eq!(format!("{major}.{minor}.{patch}"), installed);
    }
}

#[test]
fn what_is_no_nvshmem_library_is_refused_with_the_reason() {
    let error = Library::open("/nowhere/libnvshmem_host.so.3").expect_err("there is no such file");
    assert!(matches!(error, Error::Open { .. }) && error.to_string().contains("pip install"), "{error}");
    let error = Library::open("libm.so.6").expect_err("it is the C library's mathematics");
    let Error::Symbols { absent, .. } = &error else { panic!("{error}") };
    assert_eq!(absent, SYMBOLS);
}

#[test]
fn what_needs_a_device_or_a_bootstrap_is_refused_before_the_library_sees_it() {
    let Some(wheel) = wheel() else { return };
    let library = open(&wheel);
    let state = |expected| move |error: &Error| matches!(error, Error::State { expected: e, .. } if *e == expected);
    assert!(library.my_pe().is_err_and(|error| state(Status::Bootstrapped)(&error)));
    assert!(library.malloc(8).is_err_and(|error| state(Status::Initialized)(&error)));
    let id = UniqueId::from_bytes(&library.unique_id().expect("an id").to_bytes()).expect("its own bytes");
    for (rank, ranks) in [(2, 2), (-1, 2), (0, 0)] {
        let error = library.init_with_unique_id(rank, ranks, &id).expect_err("no such rank");
        assert!(matches!(error, Error::Argument(_)), "{error}");
    }
    assert!(UniqueId::from_bytes(&[0; UniqueId::BYTES]).is_err());
    library.finalize();
}

#[test]
fn two_processes_find_each_other_by_a_unique_id() {
    let Some(wheel) = wheel() else { return };
    if let Ok(role) = env::var(ROLE) {
        return rank_by_unique_id(&open(&wheel), role.parse().expect("a rank"));
    }
    let this = "nvshmem::two_processes_find_each_other_by_a_unique_id";
    let mut first = Rank::start(rank(this, "0"));
    let id = first.wait_for("id ");
    let mut second = Rank::start(rank(this, "1"));
    writeln!(second.child.stdin.take().expect("a pipe"), "{id}").expect("the second rank reads");
    assert_eq!(first.wait_for("is "), "0 of 2");
    assert_eq!(second.wait_for("is "), "1 of 2");
    assert_eq!([first.wait_for("is "), second.wait_for("is ")], ["alive", "alive"]);
    first.end();
    second.end();
}

/// This test again, as one rank. No GPU is shown to it, so that it does the same on every machine.
fn rank(test: &str, role: &str) -> Command {
    let mut command = again(test);
    command.env(ROLE, role).env("CUDA_VISIBLE_DEVICES", "");
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    command
}

/// What a rank says, to stderr, on a line of its own whatever the library printed before, and in one write: mpirun mixes
/// what its ranks write in pieces.
fn say(text: &str) {
    std::io::stderr().write_all(format!("\nrank: {text}\n").as_bytes()).expect("the test reads");
}

fn rank_by_unique_id(library: &Library, rank: i32) {
    let mut bytes = [0; UniqueId::BYTES];
    if rank == 0 {
        bytes = library.unique_id().expect("an id").to_bytes();
        say(&format!("id {}", bytes.map(|byte| format!("{byte:02x}")).concat()));
    } else {
        let mut line = String::new();
        std::io::stdin().read_line(&mut line).expect("the id");
        for (byte, digits) in bytes.iter_mut().zip(line.trim().as_bytes().chunks(2)) {
            let digits = std::str::from_utf8(digits).expect("digits");
            *byte = u8::from_str_radix(digits, 16).expect("digits");
        }
    }
    let id = UniqueId::from_bytes(&bytes).expect("the bytes of an id");
    let status = library.init_with_unique_id(rank, 2, &id).expect("the bootstrap");
    introduce(library, status);
    let again = library.init_with_unique_id(rank, 2, &id).expect_err("it is initialised");
    assert!(matches!(again, Error::State { .. }), "{again}");
    // Without a device the C function would end this process.
    library.finalize();
    say("is alive");
}

fn introduce(library: &Library, status: Status) {
    assert!(status >= Status::Bootstrapped, "{status}");
    assert_eq!(status, library.status());
    assert!(status >= Status::Initialized || library.malloc(8).is_err(), "there is no device to allocate on");
    let (pe, pes) = (library.my_pe().expect("a PE"), library.n_pes().expect("PEs"));
    say(&format!("is {pe} of {pes}"));
}

/// A process that a test started, and its lines; killed when the test ends however it ends.
struct Rank {
    child: Child,
    lines: Receiver<String>,
    said: Vec<String>,
}

impl Rank {
    fn start(mut command: Command) -> Rank {
        Rank::from(command.spawn().expect("this program starts again"))
    }

    fn from(mut child: Child) -> Rank {
        let stderr: Box<dyn Read + Send> = Box::new(child.stderr.take().expect("a pipe"));
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || {
            let lines = BufReader::new(stderr).lines().map_while(Result::ok);
            lines.map_while(|line| sender.send(line).ok()).for_each(drop);
        });
        Rank { child, lines, said: Vec::new() }
    }

    /// The rest of the first line to come that begins with this word.
    fn wait_for(&mut self, word: &str) -> String {
        loop {
            let line = match self.lines.recv_timeout(LIMIT) {
                Ok(line) => line,
                Err(_) => panic!("no '{word}' came: {:#?}", self.said),
            };
            if let Some(rest) = line.strip_prefix("rank: ").and_then(|text| text.strip_prefix(word)) {
                return rest.to_string();
            }
            self.said.push(line);
        }
    }

    fn end(mut self) {
        let begin = Instant::now();
        let status = loop {
            match self.child.try_wait().expect("a child") {
                Some(status) => break status,
                None => assert!(begin.elapsed() < LIMIT, "the rank does not end: {:#?}", self.said),
            }
            std::thread::sleep(Duration::from_millis(10));
        };
        let rest: Vec<String> = self.lines.iter().collect();
        assert!(status.success(), "{status}: {:#?} {rest:#?}", self.said);
    }
}

impl Drop for Rank {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
