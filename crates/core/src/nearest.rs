//! Names that were probably meant: "did you mean". One measure for settings of scripts, keys of planning files, files
//! that jobs wait for and paths on the command line.

/// The name among `valid` that `name` was probably meant to be.
#[must_use]
pub fn nearest(name: &str, valid: &[&str]) -> Option<String> {
    /// Longer names are not misspelt, they are something else.
    const MAX_CHARS: usize = 64;
    if name.chars().count() > MAX_CHARS {
        return None;
    }
    let scored = valid
        .iter()
        .map(|&candidate| (distance(name, candidate), candidate));
    let (edits, best) = scored.min()?;
    (edits <= 1 + best.len() / 4).then(|| best.to_owned())
}

/// As [`nearest`], of files: `part-2` is not `part-1` misspelt.
#[must_use]
pub fn nearest_file(name: &str, files: &[&str]) -> Option<String> {
    let plain = |name: &str| name.replace(|c: char| c.is_ascii_digit(), "");
    let likely: Vec<&str> = files
        .iter()
        .copied()
        .filter(|file| plain(file) != plain(name))
        .collect();
    nearest(name, &likely)
}

/// Insertions, removals and replacements that make one name of the other, case aside.
fn distance(a: &str, b: &str) -> usize {
    let (a, b) = (a.to_lowercase(), b.to_lowercase());
    let mut row: Vec<usize> = (0..=b.chars().count()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = row[0];
        row[0] = i + 1;
        for (j, y) in b.chars().enumerate() {
            let replace = diagonal + usize::from(x != y);
            diagonal = row[j + 1];
            row[j + 1] = replace.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[row.len() - 1]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearest_name_is_near() {
        let valid = ["input", "output", "kernel", "lifetime"];
        assert_eq!(nearest("inputs", &valid).as_deref(), Some("input"));
        assert_eq!(nearest("Kernal", &valid).as_deref(), Some("kernel"));
        assert_eq!(nearest("livetime", &valid).as_deref(), Some("lifetime"));
        assert_eq!(nearest("colour", &valid), None);
        let files = ["part-1.fits", "access.log"];
        assert_eq!(nearest_file("part-2.fits", &files), None);
        assert_eq!(
            nearest_file("acces.log", &files).as_deref(),
            Some("access.log")
        );
    }
}
