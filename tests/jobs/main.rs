//! Jobs are read as the frameworks' own parsers read them.

mod configurations;
mod forms;
mod logs;
mod megatron;
mod mutated;
mod shell;
