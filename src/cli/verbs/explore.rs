//! `pipesim explore`: the explorer in a browser.

use super::schedules;
use crate::cli::Failure;
use crate::cli::explorer::{Engine, page};
use crate::cli::options::output::OneFile;
use crate::cli::terminal::progress::RemarkOptions;
use clap::Args;
use std::io::Read;
use std::path::PathBuf;

/// A program for the file is smaller.
const MOST_BYTES: u64 = 256 << 20;

const HELP: &str = "Without -o, serves the page to this machine alone until Ctrl-C, and runs what it asks for. With -o, writes one \
file that opens from disk and needs no server; tests/explorer/build makes the program that it contains.";

#[derive(Args)]
#[command(after_help = HELP)]
pub struct Explore {
    /// Port; 0 for any free one
    #[arg(long, default_value_t = 0, conflicts_with = "output")]
    port: u16,
    /// Write one .html file instead of serving
    #[arg(long, short, value_name = "FILE.html", requires = "program")]
    output: Option<PathBuf>,
    /// The program for the file, built for wasm32-wasip1
    #[arg(long, value_name = "FILE.wasm", requires = "output")]
    program: Option<PathBuf>,
    #[command(flatten)]
    remarks: RemarkOptions,
}

impl Explore {
    /// Serves, or writes the file. `command` is the definition of the command line.
    pub fn run(&self, command: fn() -> clap::Command) -> Result<(), Failure> {
        let list = schedules::list()?;
        let Some(program) = &self.program else { return self.serve(&list, command) };
        let file = OneFile::at(self.output.as_deref(), &["html"])?;
        let name = program.display();
        let mut module = Vec::new();
        std::fs::File::open(program)
            .and_then(|file| file.take(MOST_BYTES).read_to_end(&mut module))
            .map_err(|error| Failure::Usage(format!("cannot read {name}: {error}; run tests/explorer/build")))?;
        if !module.starts_with(b"\0asm") || module.len() as u64 == MOST_BYTES {
            return Err(Failure::Usage(format!(
                "{name}: expected WebAssembly, found another file; run tests/explorer/build"
            )));
        }
        let page = page(&Engine::Inside(&module), &list).map_err(anyhow::Error::from)?;
        file.write(page, self.remarks, |_| String::new())
    }

    #[cfg(unix)]
    fn serve(&self, list: &serde_json::Value, command: fn() -> clap::Command) -> Result<(), Failure> {
        use crate::cli::explorer::server::Explorer;
        let explorer = Explorer::bind(self.port, list, command).map_err(|error| {
            Failure::Environment(format!("cannot serve on port {}: {error}; choose another --port", self.port))
        })?;
        self.remarks.remark("Open this address in a browser on this machine; Ctrl-C ends.");
        crate::cli::terminal::print(&format!("{}\n", explorer.address()))?;
        Ok(explorer.serve().map_err(anyhow::Error::from)?)
    }

    #[cfg(not(unix))]
    fn serve(&self, _: &serde_json::Value, _: fn() -> clap::Command) -> Result<(), Failure> {
        Err(Failure::Environment("cannot serve here; expected a system with sockets".to_string()))
    }
}
