//! Workspaces and their channels.

use super::table::{columns, listing};
use super::{dash, given, joined, list, records};
use crate::format::{self, Bytes, Time};
use std::collections::BTreeMap;
use tidemill_client::users;
use tidemill_wire::{route, v1};

listing! {
    /// List of workspaces.
    Workspaces of Workspace
}

records! {
    /// Workspace: a directory with a quota and an end.
    Workspace from of: v1::Workspace {
        workspace: String = of.name.clone(),
        path: String = format!("/workspaces/{}", of.name),
        uid: u32, gid: u32,
        /// Mode of the directory, in octal digits.
        mode: String = format!("{:o}", of.mode & 0o777),
        /// Quota of files and channels; null for no quota.
        quota_bytes: Option<Bytes> = given(&of.quota_bytes),
        used_bytes: Bytes, files: u64, created: Time,
        /// End of the workspace; null if the workspace ends with its last lease holder.
        expires: Option<Time> = given(&of.expires),
        members: Vec<WorkspaceMember> = list(&of.members),
        #[serde(skip)]
        listed_mode: String = format::mode('d', of.mode),
    }

    /// Lease holder of a workspace.
    WorkspaceMember from of: v1::WorkspaceMember {
        member: u64, uid: u32, joined: Time,
        /// End of the lease; null for a lease without an end.
        until: Option<Time> = given(&of.until),
    }
}

columns! { workspace: Workspace {
    left "WORKSPACE" => workspace.workspace,
    left "OWNER" => users::name(workspace.uid),
    left "MODE" => workspace.listed_mode,
    right "FILES" => workspace.files,
    right "USED" => workspace.used_bytes,
    right "QUOTA" => dash(&workspace.quota_bytes),
    left "ENDS (UTC)" => dash(&workspace.expires),
    left "MEMBERS" => joined(workspace.members.iter().map(|one| format!("{} ({})", one.member, users::name(one.uid)))),
} }

listing! {
    /// List of channels.
    Channels of ListedChannel
}

records! {
    /// Channel of a workspace.
    Channel from of: v1::Channel {
        workspace: String, channel: String, uid: u32, node: u32,
        /// Whether messages are in the memory of the node.
        memory: bool,
        /// Whether the node with the messages is lost.
        lost: bool,
        capacity_bytes: Bytes, created: Time,
    }

    /// Channel with its state.
    ListedChannel {
        #[serde(flatten)]
        channel: Channel,
        /// State; null if the node does not report it.
        state: Option<ChannelState>,
    }

    /// State of a channel.
    ChannelState from of: route::ChannelState {
        /// Number of the first stored message.
        first: u64,
        /// Number of the next message.
        next: u64,
        held_bytes: Bytes, capacity_bytes: Bytes,
        /// Consumers, and the number of the next message of each.
        consumers: BTreeMap<String, u64>,
    }
}

impl ListedChannel {
    fn state(&self, text: fn(&ChannelState) -> String) -> String {
        dash(&self.state.as_ref().map(text))
    }
}

columns! { one: ListedChannel {
    left "CHANNEL" => one.channel.channel,
    left "OWNER" => users::name(one.channel.uid),
    left "NODE" => match (one.channel.lost, one.channel.memory) {
        (true, _) => "lost".to_owned(),
        (_, true) => format!("{} (memory)", one.channel.node),
        (_, false) => one.channel.node.to_string(),
    },
    right "CAPACITY" => one.channel.capacity_bytes,
    right "HELD" => one.state(|state| state.held_bytes.to_string()),
    right "FIRST" => one.state(|state| state.first.to_string()),
    right "NEXT" => one.state(|state| state.next.to_string()),
    left "CONSUMERS" => one.state(|state| joined(state.consumers.iter().map(|(name, next)| format!("{name} at {next}")))),
} }
