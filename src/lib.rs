pub mod op; pub mod metrics; pub mod timeline; pub mod schedule; pub mod dsl; pub mod graph; pub mod cost; pub mod sim; pub mod model; pub mod exec; pub mod report; pub mod cli;
