//! Files that jobs are going to write: among the unfinished jobs, each output has one writer, although the namespace has no entry for the
//! output until the output is complete.
//!
//! The claims are only in memory: when a server starts, it claims the outputs of its unfinished jobs again.

use parking_lot::Mutex;
use std::collections::BTreeMap;
use tidemill_model::id::JobId;

/// Claimed output paths, as described in the module's documentation.
#[derive(Debug, Default)]
pub struct Claims(Mutex<BTreeMap<String, JobId>>);

impl Claims {
    /// Claims files and directories for a job. A directory, with a slash at the end, is claimed with all entries below it. If other jobs
    /// have claimed any of the paths, returns these paths and claims nothing.
    pub fn claim(
        &self,
        job: JobId,
        paths: &[&str],
    ) -> Result<JobClaims<'_>, BTreeMap<String, JobId>> {
        let mut claims = self.0.lock();
        let taken = taken(&claims, paths);
        if !taken.is_empty() {
            return Err(taken);
        }
        claims.extend(paths.iter().map(|&path| (path.to_owned(), job)));
        Ok(JobClaims {
            claims: self,
            job,
            paths: paths.iter().map(|&path| path.to_owned()).collect(),
        })
    }

    /// Returns those of these paths that jobs have claimed, each with the job.
    pub fn taken(&self, paths: &[&str]) -> BTreeMap<String, JobId> {
        taken(&self.0.lock(), paths)
    }

    /// Claims a file for a job that was accepted earlier, unless another job has claimed the file.
    pub fn again(&self, job: JobId, path: &str) {
        self.0.lock().entry(path.to_owned()).or_insert(job);
    }

    /// Releases the claims of a job that has ended or was not accepted.
    pub fn release<'a>(&self, job: JobId, paths: impl Iterator<Item = &'a str>) {
        let mut claims = self.0.lock();
        for path in paths {
            if claims.get(path) == Some(&job) {
                claims.remove(path);
            }
        }
    }
}

/// Returns the job that has claimed this path, one of its ancestors, or a path below it.
fn holder(claims: &BTreeMap<String, JobId>, path: &str) -> Option<JobId> {
    let plain = path.trim_end_matches('/');
    let above = plain.rmatch_indices('/').map(|(end, _)| &plain[..=end]);
    let directory = format!("{plain}/");
    let mut directories = above.chain([directory.as_str()]);
    let within = || directories.find_map(|directory| claims.get(directory).copied());
    let found = claims.get(plain).copied().or_else(within);
    if plain.len() == path.len() {
        return found;
    }
    let below = || {
        let (first, &job) = claims.range(directory.clone()..).next()?;
        first.starts_with(&directory).then_some(job)
    };
    found.or_else(below)
}

fn taken(claims: &BTreeMap<String, JobId>, paths: &[&str]) -> BTreeMap<String, JobId> {
    let taken = paths
        .iter()
        .filter_map(|&path| Some((path.to_owned(), holder(claims, path)?)));
    taken.collect()
}

/// Claims of a job that is being accepted. Dropping this value releases the claims, unless the job was accepted.
#[derive(Debug)]
pub struct JobClaims<'a> {
    claims: &'a Claims,
    job: JobId,
    paths: Vec<String>,
}

impl JobClaims<'_> {
    /// Keeps the claims when this value is dropped, because the job was accepted.
    pub fn keep(mut self) {
        self.paths.clear();
    }
}

impl Drop for JobClaims<'_> {
    fn drop(&mut self) {
        let paths = self.paths.iter().map(String::as_str);
        self.claims.release(self.job, paths);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn claim_refuses_second_writer_until_job_ends() {
        let claims = Claims::default();
        let (first, second) = (JobId(1), JobId(2));
        claims.claim(first, &["/a", "/b"]).unwrap().keep();
        let taken = claims.claim(second, &["/b", "/c"]).unwrap_err();
        assert_eq!(taken, BTreeMap::from([("/b".to_owned(), first)]));
        assert_eq!(claims.taken(&["/b", "/c"]), taken);
        drop(claims.claim(second, &["/c"]).unwrap());
        claims.again(first, "/a");
        claims.release(second, ["/a"].into_iter());
        assert!(claims.claim(second, &["/a", "/c"]).is_err());
        claims.release(first, ["/a", "/b"].into_iter());
        claims.claim(second, &["/a", "/b", "/c"]).unwrap().keep();
    }

    #[test]
    fn claim_of_directory_covers_all_paths_below() {
        let claims = Claims::default();
        let (first, second) = (JobId(1), JobId(2));
        claims.claim(first, &["/w/d/", "/w/f/g"]).unwrap().keep();
        for taken in [
            "/w/d",
            "/w/d/",
            "/w/d/e",
            "/w/d/e/f/",
            "/w/f/",
            "/w/",
            "/w/f/g/",
        ] {
            let refused = claims.claim(second, &[taken]).unwrap_err();
            assert_eq!(refused, BTreeMap::from([(taken.to_owned(), first)]));
        }
        for free in ["/w/dd", "/w/c/", "/w/f/h", "/w/d!", "/w/f/gg/"] {
            drop(claims.claim(second, &[free]).unwrap());
        }
        claims.release(first, ["/w/d/", "/w/f/g"].into_iter());
        claims.claim(second, &["/w/"]).unwrap().keep();
    }
}
