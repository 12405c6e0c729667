//! `tidemill events`: follows new versions of files, as they are closed or renamed.

use crate::context::{CommandContext, credentials};
use crate::output::Message;
use crate::output::messages::FileEvent;
use std::process::ExitCode;
use std::time::Duration;
use tidemill_model::display;
use tidemill_wire::v1;

const EXAMPLES: &str = "Examples:
  tidemill events                          every new file that you may read, as it is closed or renamed
  tidemill events '/run/step-*'            files of this name
  tidemill events '/run/**' --count 1      wait for one file
  tidemill --json events '/run/step-*' --since 1764122400000000

--json prints a cursor with each file. --since continues after the cursor, and misses no file.";

/// Maximum duration of one request: the limit of the server.
const WAIT: Duration = Duration::from_secs(60);
/// Pause before another request to an offline server.
const RETRY_PAUSE: Duration = Duration::from_millis(500);

/// Follow new files and new versions of files, as they are closed or renamed
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Args {
    /// Glob of full paths
    #[arg(value_name = "PATTERN", default_value = "/**")]
    pattern: String,
    /// Cursor after which file events are shown, past events included [default: new events only]
    #[arg(long, value_name = "CURSOR")]
    since: Option<String>,
    /// Number of file events after which the command ends [default: no limit]
    #[arg(long, value_name = "N")]
    count: Option<u64>,
}

pub(crate) async fn run(args: Args, context: &CommandContext) -> anyhow::Result<ExitCode> {
    let server = context.connect().await?;
    let mut request = v1::EventsRequest {
        credentials: Some(credentials()),
        pattern: args.pattern,
        since: args.since.unwrap_or_default(),
        wait_ns: u64::try_from(WAIT.as_nanos()).unwrap_or(u64::MAX),
        limit: 0,
    };
    let (mut left, mut offline) = (args.count.unwrap_or(u64::MAX), false);
    while left > 0 {
        request.limit = u32::try_from(left).unwrap_or(0);
        let reply = match server.events().next(request.clone()).await {
            Ok(reply) => reply.into_inner(),
            Err(status) => {
                let error = server.explain(status);
                if !error.is_lost() {
                    return Err(error.into());
                }
                if !std::mem::replace(&mut offline, true) {
                    context.note(format_args!("{error}; trying again, no file is missed"));
                }
                tokio::time::sleep(RETRY_PAUSE).await;
                continue;
            }
        };
        offline = false;
        if reply.missed {
            context.note(
                "some file events were missed: the cluster remembers a limited number of file events",
            );
        }
        for event in &reply.events {
            show(event, context)?;
            left -= 1;
        }
        request.since = reply.cursor;
    }
    Ok(ExitCode::SUCCESS)
}

fn show(event: &v1::FileEvent, context: &CommandContext) -> anyhow::Result<()> {
    let text = display::line(&event.path);
    context
        .output
        .step(&Message(text, FileEvent::from(event)))?;
    Ok(())
}
