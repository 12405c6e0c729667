//! Workspaces and their channels.

use super::{View, table, write_table};
use crate::format;
use serde_json::{Value, json};
use std::io::{self, Write};
use tidemill_client::users;
use tidemill_core::display::line;
use tidemill_wire::route::ChannelState;
use tidemill_wire::v1;

/// Output of `tidemill workspace list`.
#[derive(Debug)]
pub(crate) struct WorkspacesView(pub(crate) Vec<v1::Workspace>);

impl View for WorkspacesView {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let header = [
            "WORKSPACE",
            "OWNER",
            "MODE",
            "FILES",
            "USED",
            "QUOTA",
            "ENDS (UTC)",
            "MEMBERS",
        ];
        let mut rows = table(&header, &[3, 4, 5]);
        for workspace in &self.0 {
            let members = workspace.members.iter();
            let members = members.map(|one| format!("{} ({})", one.member, users::name(one.uid)));
            rows.add_row([
                line(&workspace.name),
                users::name(workspace.uid),
                format::mode('d', workspace.mode),
                workspace.files.to_string(),
                format::bytes(workspace.used_bytes),
                match workspace.quota_bytes {
                    0 => "-".into(),
                    quota => format::bytes(quota),
                },
                match workspace.expires {
                    0 => "-".into(),
                    expires => format::time(expires),
                },
                members.collect::<Vec<_>>().join(", "),
            ]);
        }
        write_table(out, &rows)
    }

    fn json(&self) -> Value {
        self.0.iter().map(workspace_json).collect()
    }
}

/// Output of `tidemill channel list`: channels, and their states if their nodes report them.
#[derive(Debug)]
pub(crate) struct ChannelsView(pub(crate) Vec<(v1::Channel, Option<ChannelState>)>);

impl View for ChannelsView {
    fn text(&self, out: &mut dyn Write) -> io::Result<()> {
        let header = [
            "CHANNEL",
            "OWNER",
            "NODE",
            "CAPACITY",
            "HELD",
            "FIRST",
            "NEXT",
            "CONSUMERS",
        ];
        let mut rows = table(&header, &[3, 4, 5, 6]);
        for (channel, state) in &self.0 {
            let tier = if channel.memory { " (memory)" } else { "" };
            let printed = |say: fn(&ChannelState) -> String| match state {
                Some(state) => say(state),
                None => "-".into(),
            };
            rows.add_row([
                line(&channel.channel),
                users::name(channel.uid),
                match channel.lost {
                    true => "lost".into(),
                    false => format!("{}{tier}", channel.node),
                },
                format::bytes(channel.capacity_bytes),
                printed(|state| format::bytes(state.held_bytes)),
                printed(|state| state.first.to_string()),
                printed(|state| state.next.to_string()),
                printed(|state| {
                    let consumers = state.consumers.iter();
                    let consumers = consumers.map(|(name, next)| format!("{name} at {next}"));
                    consumers.collect::<Vec<_>>().join(", ")
                }),
            ]);
        }
        write_table(out, &rows)
    }

    fn json(&self) -> Value {
        let json = |(channel, state): &(_, Option<ChannelState>)| {
            let mut json = channel_json(channel);
            json["state"] = serde_json::to_value(state).unwrap_or_default();
            json
        };
        self.0.iter().map(json).collect()
    }
}

/// Returns a channel as JSON.
pub(crate) fn channel_json(channel: &v1::Channel) -> Value {
    json!({
        "workspace": channel.workspace,
        "channel": channel.channel,
        "uid": channel.uid,
        "node": channel.node,
        "memory": channel.memory,
        "lost": channel.lost,
        "capacity_bytes": channel.capacity_bytes,
        "created": channel.created,
    })
}

/// Returns a workspace as JSON.
pub(crate) fn workspace_json(workspace: &v1::Workspace) -> Value {
    let member = |one: &v1::WorkspaceMember| {
        json!({
            "member": one.member,
            "uid": one.uid,
            "joined": one.joined,
            "until": (one.until != 0).then_some(one.until),
        })
    };
    json!({
        "workspace": workspace.name,
        "path": format!("/workspaces/{}", workspace.name),
        "uid": workspace.uid,
        "gid": workspace.gid,
        "mode": format!("{:o}", workspace.mode & 0o777),
        "quota_bytes": (workspace.quota_bytes != 0).then_some(workspace.quota_bytes),
        "used_bytes": workspace.used_bytes,
        "files": workspace.files,
        "created": workspace.created,
        "expires": (workspace.expires != 0).then_some(workspace.expires),
        "members": workspace.members.iter().map(member).collect::<Vec<_>>(),
    })
}
