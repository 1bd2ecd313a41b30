//! `comity-agent`, the agent of one cluster.

fn main() -> std::process::ExitCode {
    comity_agent::command_line::main()
}
