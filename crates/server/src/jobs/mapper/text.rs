//! Maps of text files: lines with columns. This module reads only the first lines; each task instance processes the lines that begin in its
//! bytes.

use super::{numbers, within_part};
use std::ops::Range;
use tidemill_compute::array::{Dtype, Encoded};
use tidemill_format::Bytes;
use tidemill_format::csv::{Csv, CsvType};
use tidemill_lang::job::{MappedSelection, MapperResult, Mapping};
use tidemill_model::layout::{Layout, Records, Selection, StripedLayout};

/// Returns the task instances that read a column of a text file.
pub(super) fn map(
    bytes: &dyn Bytes,
    layout: &Layout,
    (spec, mapping): (&str, &Mapping<'_>),
) -> Result<MapperResult, String> {
    let csv = Csv::read(spec, bytes).map_err(|error| error.to_string())?;
    let args = args(&csv, mapping.kernels)?;
    let begin = csv.begin;
    if begin >= layout.size() {
        return Err("there is no line after its header".to_owned());
    }
    let how = serde_json::to_string(&Encoded::Text { csv }).map_err(|error| error.to_string())?;
    let lines = Records::until(b"\n").map_err(|error| error.to_string())?;
    let instance = |number: usize, part: Option<usize>, range: Range<u64>| {
        let part = part
            .map(u32::try_from)
            .transpose()
            .map_err(|error| error.to_string())?;
        let bytes = Selection::ranges(part, &[range]);
        let selection =
            bytes.and_then(|bytes| bytes.of_records(Some(lines.clone())).of_values(Some(&how)));
        let selection = selection.map_err(|error| error.to_string())?;
        Ok::<_, String>(MappedSelection { number, selection })
    };
    let Some(striped) = striped(layout) else {
        return Ok(MapperResult {
            instances: vec![instance(0, None, begin..layout.size())?],
            count: 1,
            unplaced: true,
            args,
        });
    };
    let width = striped.parts.len();
    let (count, all): (usize, Vec<_>) = match mapping.per_part {
        true => {
            let of =
                |size: u64, part: usize| StripedLayout::part_size(striped.unit, width, size, part);
            let one = |part: usize| (part, Some(part), of(begin, part)..of(striped.size, part));
            (width, (0..width).map(one).collect())
        }
        false => {
            let stripes = striped.size.div_ceil(striped.unit);
            let one = |stripe: u64| {
                let at = stripe * striped.unit;
                let bytes = at.max(begin)..(at + striped.unit).min(striped.size);
                let within = within_part(layout, &bytes);
                let part = within.as_ref().map(|(part, _)| *part);
                (
                    usize::try_from(stripe).unwrap_or(usize::MAX),
                    part,
                    within.map_or(bytes, |(_, within)| within),
                )
            };
            let stripes_max = super::CHUNKS_MAX as u64;
            if stripes > stripes_max {
                return Err(format!(
                    "it has more than {stripes_max} stripes: stripe the file in larger units"
                ));
            }
            (
                usize::try_from(stripes).unwrap_or(usize::MAX),
                (begin / striped.unit..stripes).map(one).collect(),
            )
        }
    };
    let all = all.into_iter().filter(|(_, _, range)| !range.is_empty());
    let instances = all.map(|(number, part, range)| instance(number, part, range));
    Ok(MapperResult {
        instances: instances.collect::<Result<_, String>>()?,
        count,
        unplaced: true,
        args,
    })
}

/// Returns the arguments of a built-in kernel of numbers that reads a column.
fn args(csv: &Csv, kernels: &[Vec<String>]) -> Result<Vec<String>, String> {
    let (dtype, missing) = match csv.number {
        CsvType::Float => (Dtype::Float64, Some("nan".to_owned())),
        CsvType::Int => (Dtype::Int64, csv.fill.map(|fill| fill.to_string())),
    };
    Ok(numbers::of_type(kernels, dtype, missing)?.args)
}

/// Returns the layout of a file that is striped over several parts; `None` for other files.
fn striped(layout: &Layout) -> Option<&StripedLayout> {
    match layout {
        Layout::Striped(striped) if striped.parts.len() > 1 => Some(striped),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::{file_layout, plain};
    use super::*;
    use std::fmt::Write as _;

    /// Returns the input of a task instance: the lines that begin in its bytes.
    fn lines_of(text: &[u8], layout: &Layout, selection: &Selection) -> Vec<u8> {
        let runs = layout.runs(selection).unwrap();
        let begins = |at: usize| at == 0 || text[at - 1] == b'\n';
        let in_runs = |at: &usize| runs.iter().any(|run| run.contains(&(*at as u64)));
        let at = (0..text.len()).filter(|at| begins(*at)).filter(in_runs);
        at.flat_map(|at| {
            let end = text[at..].iter().position(|byte| *byte == b'\n');
            text[at..end.map_or(text.len(), |end| at + end + 1)].to_vec()
        })
        .collect()
    }

    #[test]
    fn csv_mapper_assigns_each_line_once_for_any_striping() {
        let mut text = "# by hand\nname,x\n".to_owned();
        for number in 0..200_i64 {
            writeln!(text, "\"n,{number}\",{}", number * number).unwrap();
        }
        let text = text.into_bytes();
        let expected: Vec<i64> = (0..200).map(|number| number * number).collect();
        for (unit, width) in [
            (0, 0),
            (4096, 1),
            (4096, 3),
            (100, 2),
            (24, 7),
            (7, 3),
            (5, 200),
        ] {
            let layout = file_layout(text.len() as u64, unit, width);
            for per_part in [true, false] {
                let mapping = plain("", per_part);
                let map = map(&text, &layout, ("x,skip=1,type=i8", &mapping)).unwrap();
                assert!(map.instances.iter().all(|one| one.number < map.count));
                let mut found = Vec::new();
                for one in &map.instances {
                    let values = one.selection.values().unwrap();
                    let Encoded::Text { csv } = serde_json::from_str(values).unwrap() else {
                        panic!()
                    };
                    let mut out = Vec::new();
                    let lines = lines_of(&text, &layout, &one.selection);
                    tidemill_compute::array::columns(&csv, &lines, false, &mut out).unwrap();
                    found.extend(
                        out.chunks(8)
                            .map(|number| i64::from_ne_bytes(number.try_into().unwrap())),
                    );
                }
                if per_part {
                    found.sort_unstable();
                }
                assert_eq!(found, expected, "{unit} {width} {per_part}");
            }
        }
    }

    #[test]
    fn csv_mapper_of_missing_column_reports_reason() {
        let layout = |text: &[u8]| file_layout(text.len() as u64, 4096, 3);
        for (text, spec, why) in [
            (&b"a,b\n1,2\n"[..], "c", "no variable c; there are a, b"),
            (b"a,b\n", "a", "no line after its header"),
            (b"", "a", "no header line"),
            (b"a,b\n1,2\n", "a,sep=;", "is none of"),
        ] {
            let refused = map(&text.to_vec(), &layout(text), (spec, &plain("", true))).unwrap_err();
            assert!(refused.contains(why), "{refused}");
        }
    }
}
