//! The command line; everything is in the library.

fn main() -> std::process::ExitCode {
    pipesim::main()
}
