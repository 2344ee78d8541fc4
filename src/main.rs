//! The command line; everything is in the library.

use std::process::ExitCode;

#[global_allocator]
static MEMORY: pipesim::Memory = pipesim::Memory;

fn main() -> ExitCode {
    pipesim::main()
}
