//! The command line; everything is in the library.

#[global_allocator]
static ALLOCATOR: pipesim::Allocator = pipesim::Allocator;

fn main() -> std::process::ExitCode {
    pipesim::main()
}
