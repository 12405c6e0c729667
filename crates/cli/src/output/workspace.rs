//! Workspaces and their lease holders.

use super::table::{columns, listing};
use super::{dash, given, joined, list, records};
use crate::format::{self, Bytes, Time};
use tidemill_client::users;
use tidemill_wire::v1;

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
        /// Quota of the files; null for no quota.
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
