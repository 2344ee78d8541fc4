//! Runs a probe in a child process, and returns its finding, or how the child ended instead.

use super::finding::Finding;
use pipesim_gpu::library::ended;
use std::io::Read;
use std::os::unix::process::ExitStatusExt;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, Receiver};
use std::time::Duration;

/// The probe whose child process gets additional environment variables.
pub(super) const NVSHMEM: &str = "nvshmem";

pub(super) fn ask(probe: &str, limit: Duration) -> Finding {
    let program = match std::env::current_exe() {
        Ok(program) => program,
        Err(error) => return Finding::unknown(format!("cannot start this program again: {error}"), START),
    };
    let mut command = Command::new(program);
    command.args(["doctor", "--probe", probe]);
    if probe == NVSHMEM {
        // A small heap, and no multicast, which does not work if ranks share a GPU; unless the user has set them.
        for (name, value) in [("NVSHMEM_SYMMETRIC_SIZE", "64M"), ("NVSHMEM_DISABLE_NVLS", "1")] {
            if std::env::var_os(name).is_none() {
                command.env(name, value);
            }
        }
    }
    run(command, limit)
}

/// Checks that a child process survives a probe.
///
/// # Errors
/// Nothing if it did not end within the limit, or a description of the signal that ended it.
pub(super) fn survives(probe: &str, limit: Duration) -> Result<(), Option<String>> {
    let Ok(program) = std::env::current_exe() else { return Ok(()) };
    let mut command = Command::new(program);
    command.args(["doctor", "--probe", probe]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    let Ok(mut child) = command.spawn() else { return Ok(()) };
    match ended(&mut child, limit) {
        None => Err(None),
        Some(status) if status.signal().is_some() => Err(Some(describe(status))),
        Some(_) => Ok(()),
    }
}

const START: &str = "start it by its full path";

fn run(mut command: Command, limit: Duration) -> Finding {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = match command.spawn() {
        Ok(child) => child,
        Err(error) => return Finding::unknown(format!("cannot start this program again: {error}"), START),
    };
    let stdout = reader(child.stdout.take());
    let stderr = reader(child.stderr.take());
    let ended = ended(&mut child, limit);
    // A grandchild may hold the pipes open: use what has arrived.
    let collect = |lines: Receiver<String>| lines.recv_timeout(Duration::from_millis(500)).unwrap_or_default();
    let (stdout, stderr) = (collect(stdout), collect(stderr));
    let hint = stderr.lines().map(str::trim).rfind(|line| !line.is_empty()).map(|line| format!(" ({line})"));
    let hint = hint.unwrap_or_default();
    let Some(status) = ended else {
        let found = format!("no answer within {} s; the probe was killed{hint}", limit.as_secs_f64());
        return Finding::broken(
            found,
            "try again with `time-limit` 60; if it hangs again, restart the driver or the machine",
        );
    };
    let answer = stdout.lines().rev().find_map(|line| serde_json::from_str::<Finding>(line).ok());
    match answer {
        Some(finding) if status.success() => finding,
        Some(finding) => Finding::broken(
            format!("{}; then the probe {}{hint}", finding.found, describe(status)),
            "install the library again, or another version of it",
        ),
        None => Finding::broken(
            format!("the probe {} before it could answer{hint}", describe(status)),
            "install the library again, or another version of it",
        ),
    }
}

/// Reads a pipe on its own thread, and sends the text once the other side is closed.
fn reader(pipe: Option<impl Read + Send + 'static>) -> Receiver<String> {
    let (sender, receiver) = mpsc::channel();
    // Without a thread nothing is read, and the child is killed at its limit.
    let _ = std::thread::Builder::new().spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            // The output of a killed child may be incomplete.
            let _ = pipe.read_to_end(&mut bytes);
        }
        let _ = sender.send(String::from_utf8_lossy(&bytes).into_owned());
    });
    receiver
}

/// Returns for example "ended with exit code 255" or "was ended by signal 11 (segmentation fault)".
fn describe(status: ExitStatus) -> String {
    match (status.code(), status.signal()) {
        (Some(code), _) => format!("ended with exit code {code}"),
        (None, Some(signal)) => {
            let name = match signal {
                4 => " (illegal instruction)",
                6 => " (abort)",
                7 => " (bus error)",
                8 => " (arithmetic)",
                9 => " (killed)",
                11 => " (segmentation fault)",
                15 => " (terminated)",
                _ => "",
            };
            format!("was ended by signal {signal}{name}")
        }
        (None, None) => "ended in an unknown way".to_string(),
    }
}
