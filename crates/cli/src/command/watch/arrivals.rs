//! Files as they come.

use crate::context::{Context, credentials};
use crate::output::Said;
use serde_json::json;
use std::process::ExitCode;
use std::time::Duration;
use tidemill_client::Server;
use tidemill_core::shown;
use tidemill_wire::v1;

/// How long one question waits: the server's own bound.
const WAIT: Duration = Duration::from_secs(60);
/// Pause before another request to an offline server.
const RETRY_PAUSE: Duration = Duration::from_millis(500);

/// Shows files that match as they come, without end or until so many came.
///
/// # Errors
/// If the pattern or the cursor is none.
pub(super) async fn follow(
    server: &Server,
    pattern: &str,
    (from, count): (Option<&str>, Option<u64>),
    context: &Context,
) -> anyhow::Result<ExitCode> {
    let mut request = v1::ArrivalsRequest {
        credentials: Some(credentials()),
        pattern: pattern.to_owned(),
        since: from.unwrap_or_default().to_owned(),
        wait_ns: u64::try_from(WAIT.as_nanos()).unwrap_or(u64::MAX),
        limit: 0,
    };
    let (mut left, mut offline) = (count.unwrap_or(u64::MAX), false);
    while left > 0 {
        request.limit = u32::try_from(left).unwrap_or(0);
        let reply = match server.arrivals().next(request.clone()).await {
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
                "some of what came is not known any more: the cluster remembers a bounded number of arrivals"
            ));
        }
        for arrival in &reply.arrivals {
            show(arrival, context)?;
            left -= 1;
        }
        request.since = reply.cursor;
    }
    Ok(ExitCode::SUCCESS)
}

fn show(arrival: &v1::Arrival, context: &Context) -> anyhow::Result<()> {
    let said = json!({
        "path": arrival.path,
        "version": arrival.version,
        "object": arrival.object,
        "size": arrival.size,
        "mtime": arrival.mtime,
        "uid": arrival.uid,
        "cursor": arrival.cursor,
    });
    let text = shown::line(&arrival.path).to_string();
    context.output.step(&Said::new(text, said))?;
    Ok(())
}
