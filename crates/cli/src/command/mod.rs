//! The commands, one file each: flags, help with examples, and the code.

pub(crate) mod agent;
pub(crate) mod apps;
pub(crate) mod bench;
pub(crate) mod cancel;
pub(crate) mod cat;
pub(crate) mod channel;
pub(crate) mod check;
pub(crate) mod completions;
pub(crate) mod down;
pub(crate) mod drain;
mod dry_run;
pub(crate) mod explain;
pub(crate) mod find;
pub(crate) mod get;
pub(crate) mod health;
pub(crate) mod hook;
pub(crate) mod jobs;
pub(crate) mod kernel;
pub(crate) mod labels;
pub(crate) mod layout;
pub(crate) mod lineage;
pub(crate) mod logs;
pub(crate) mod ls;
pub(crate) mod man;
pub(crate) mod mkdir;
pub(crate) mod mount;
pub(crate) mod r#move;
pub(crate) mod mv;
pub(crate) mod node;
pub(crate) mod plan;
pub(crate) mod preload;
pub(crate) mod put;
pub(crate) mod rebalance;
pub(crate) mod rebuild;
pub(crate) mod reduce;
pub(crate) mod remote;
pub(crate) mod report;
pub(crate) mod rm;
pub(crate) mod rule;
pub(crate) mod scrub;
pub(crate) mod server;
pub(crate) mod stage;
pub(crate) mod status;
pub(crate) mod stripe;
pub(crate) mod submit;
pub(crate) mod token;
pub(crate) mod up;
pub(crate) mod variables;
pub(crate) mod watch;
pub(crate) mod workspace;

use crate::args::Command;
use crate::context::CommandContext;
use std::process::ExitCode;

/// Carries out one command.
///
/// # Errors
/// The failure of the command, in words for the user.
pub(crate) async fn run(command: Command, context: CommandContext) -> anyhow::Result<ExitCode> {
    let log = match command {
        Command::Node(ref args) if !args.is_process() => "warn",
        Command::Server(_) | Command::Node(_) | Command::Mount(_) => "info",
        _ => "warn",
    };
    context.start_log(log);
    match command {
        Command::Up(args) => up::run(args, &context).await,
        Command::Down(args) => down::run(&args, &context),
        Command::Rebuild(args) => rebuild::run(args, &context),
        Command::Status(args) => status::run(&args, &context).await,
        Command::Health(args) => health::run(&args, &context).await,
        Command::Check(args) => check::run(&args, &context).await,
        Command::Scrub(args) => scrub::run(args, &context).await,
        Command::Remote(args) => remote::run(args, &context).await,
        Command::Import(args) => remote::import::run(args, &context).await,
        Command::Export(args) => remote::export::run(args, &context).await,
        Command::Sync(args) => remote::sync::run(args, &context).await,
        Command::Put(args) => put::run(args, &context).await,
        Command::Get(args) => get::run(args, &context).await,
        Command::Cat(args) => cat::run(args, &context).await,
        Command::Ls(args) => ls::run(args, &context).await,
        Command::Layout(args) => layout::run(args, &context).await,
        Command::Find(args) => find::run(args, &context).await,
        Command::Variables(args) => variables::run(args, &context).await,
        Command::Reduce(args) => reduce::run(args, &context).await,
        Command::Stripe(args) => stripe::run(args, &context).await,
        Command::Mkdir(args) => mkdir::run(args, &context).await,
        Command::Mv(args) => mv::run(args, &context).await,
        Command::Move(args) => r#move::run(args, &context).await,
        Command::Drain(args) => drain::run(args, &context).await,
        Command::Stage(args) => stage::run(args, &context).await,
        Command::Rebalance(args) => rebalance::run(&args, &context).await,
        Command::Labels(args) => labels::run(&args, &context).await,
        Command::Apps(args) => apps::run(&args, &context),
        Command::Agent(args) => agent::run(&args),
        Command::Rm(args) => rm::run(args, &context).await,
        Command::Submit(args) => submit::run(args, &context).await,
        Command::Jobs(args) => jobs::run(&args, &context).await,
        Command::Watch(args) => watch::run(&args, &context).await,
        Command::Logs(args) => logs::run(args, &context).await,
        Command::Cancel(args) => cancel::run(&args, &context).await,
        Command::Explain(args) => explain::run(args, &context).await,
        Command::Report(args) => report::run(&args, &context).await,
        Command::Kernel(args) => kernel::run(args, &context).await,
        Command::Plan(args) => plan::run(args, &context).await,
        Command::Lineage(args) => lineage::run(args, &context).await,
        Command::Bench(args) => bench::run(args, &context).await,
        Command::Server(args) => server::run(args, &context).await,
        Command::Node(args) => node::run(args, &context).await,
        Command::Mount(args) => mount::run(args, &context).await,
        Command::Preload(args) => preload::run(args, &context).await,
        Command::Hook(args) => hook::run(args, &context).await,
        Command::Rule(args) => rule::run(args, &context).await,
        Command::Channel(args) => channel::run(args, &context).await,
        Command::Workspace(args) => workspace::run(args, &context).await,
        Command::Token(args) => token::run(args, &context).await,
        Command::Completions(args) => completions::run(&args),
        Command::Man(args) => man::run(&args, &context),
    }
}
