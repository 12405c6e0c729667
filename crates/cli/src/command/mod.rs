//! The commands, one file each: flags, help with examples, and the code.

pub(crate) mod r#async;
pub(crate) mod cat;
pub(crate) mod cluster;
pub(crate) mod completions;
pub(crate) mod config;
pub(crate) mod cp;
pub(crate) mod doctor;
pub(crate) mod down;
pub(crate) mod events;
pub(crate) mod exec;
pub(crate) mod find;
pub(crate) mod get;
pub(crate) mod inspect;
pub(crate) mod job;
pub(crate) mod kernel;
pub(crate) mod lineage;
pub(crate) mod ls;
pub(crate) mod man;
pub(crate) mod migrate;
pub(crate) mod mkdir;
pub(crate) mod mount;
pub(crate) mod mv;
pub(crate) mod node;
pub(crate) mod plan;
pub(crate) mod put;
pub(crate) mod reduce;
pub(crate) mod remote;
pub(crate) mod rm;
pub(crate) mod rule;
pub(crate) mod server;
pub(crate) mod set;
pub(crate) mod stage;
pub(crate) mod stat;
pub(crate) mod status;
pub(crate) mod submit;
pub(crate) mod sync;
pub(crate) mod token;
pub(crate) mod up;
pub(crate) mod workspace;

use crate::args::Command;
use crate::context::CommandContext;
use std::process::ExitCode;

/// Carries out one command.
///
/// # Errors
/// The failure of the command, in words for the user.
pub(crate) async fn run(command: Command, context: CommandContext) -> anyhow::Result<ExitCode> {
    let context = &context;
    context.start_log(if is_daemon(&command) { "info" } else { "warn" });
    match command {
        Command::Up(args) => up::run(args, context).await,
        Command::Down(args) => down::run(args, context).await,
        Command::Status(args) => status::run(args, context).await,
        Command::Doctor(args) => doctor::run(args, context).await,
        Command::Ls(args) => ls::run(args, context).await,
        Command::Cat(args) => cat::run(args, context).await,
        Command::Get(args) => get::run(args, context).await,
        Command::Put(args) => put::run(args, context).await,
        Command::Rm(args) => rm::run(args, context).await,
        Command::Mv(args) => mv::run(args, context).await,
        Command::Mkdir(args) => mkdir::run(args, context).await,
        Command::Cp(args) => cp::run(args, context).await,
        Command::Sync(args) => sync::run(args, context).await,
        Command::Stat(args) => stat::run(args, context).await,
        Command::Set(args) => set::run(args, context).await,
        Command::Migrate(args) => migrate::run(args, context).await,
        Command::Find(args) => find::run(args, context).await,
        Command::Inspect(args) => inspect::run(args, context).await,
        Command::Reduce(args) => reduce::run(args, context).await,
        Command::Submit(args) => submit::run(args, context).await,
        Command::Job(args) => job::run(args, context).await,
        Command::Rule(args) => rule::run(args, context).await,
        Command::Kernel(args) => kernel::run(args, context).await,
        Command::Lineage(args) => lineage::run(args, context).await,
        Command::Events(args) => events::run(args, context).await,
        Command::Exec(args) => exec::run(args, context).await,
        Command::Workspace(args) => workspace::run(args, context).await,
        Command::Stage(args) => stage::run(args, context).await,
        Command::Remote(args) => remote::run(args, context).await,
        Command::Node(args) => node::run(args, context).await,
        Command::Cluster(args) => cluster::run(args, context).await,
        Command::Token(args) => token::run(args, context).await,
        Command::Config(args) => config::run(args, context).await,
        Command::Server(args) => server::run(args, context).await,
        Command::Mount(args) => mount::run(args, context).await,
        Command::Async(args) => r#async::run(args, context).await,
        Command::Plan(args) => plan::run(args, context).await,
        Command::Completions(args) => completions::run(args, context).await,
        Command::Man(args) => man::run(args, context).await,
    }
}

/// Whether the command stays in the foreground as a part of the cluster, and logs its normal operation.
fn is_daemon(command: &Command) -> bool {
    match command {
        Command::Node(args) => args.is_daemon(),
        Command::Server(args) => args.is_daemon(),
        Command::Mount(_) => true,
        _ => false,
    }
}
