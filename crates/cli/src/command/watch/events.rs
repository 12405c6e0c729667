//! File events.

use crate::context::{CommandContext, credentials};
use crate::output::Printed;
use serde_json::json;
use std::process::ExitCode;
use std::time::Duration;
use tidemill_client::Server;
use tidemill_core::display;
use tidemill_wire::v1;

/// How long one question waits: the server's own bound.
const WAIT: Duration = Duration::from_secs(60);
/// Pause before another request to an offline server.
const RETRY_PAUSE: Duration = Duration::from_millis(500);

/// Shows matching file events, without end or until so many were shown.
///
/// # Errors
/// If the pattern or the cursor is none.
pub(super) async fn follow(
    server: &Server,
    pattern: &str,
    (from, count): (Option<&str>, Option<u64>),
    context: &CommandContext,
) -> anyhow::Result<ExitCode> {
    let mut request = v1::EventsRequest {
        credentials: Some(credentials()),
        pattern: pattern.to_owned(),
        since: from.unwrap_or_default().to_owned(),
        wait_ns: u64::try_from(WAIT.as_nanos()).unwrap_or(u64::MAX),
        limit: 0,
    };
    let (mut left, mut offline) = (count.unwrap_or(u64::MAX), false);
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
            context.note(format_args!(
                "some file events are not known any more: the cluster remembers a bounded number of file events"
            ));
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
    let printed = json!({
        "path": event.path,
        "version": event.version,
        "object": event.object,
        "size": event.size,
        "mtime": event.mtime,
        "uid": event.uid,
        "cursor": event.cursor,
    });
    let text = display::line(&event.path).to_string();
    context.output.step(&Printed::new(text, printed))?;
    Ok(())
}
