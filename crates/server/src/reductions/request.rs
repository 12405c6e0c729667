//! Requests in reductionist's interface: the JSON of a request, and the reduction that it describes.

use super::refused::ReductionRefusal;
use serde::Deserialize;
use serde_json::Number;
use tidemill_compute::array::{
    ArrayError, ArrayOperation, ArrayPlan, ArraySlice, ArraySpec, Codec, Dtype, Literal, Missing,
};

/// JSON body of a request. Unknown fields are refused.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Body {
    interface_type: Interface,
    url: String,
    dtype: Dtype,
    #[serde(default)]
    byte_order: ByteOrder,
    #[serde(default)]
    offset: u64,
    size: Option<u64>,
    shape: Option<Vec<u64>>,
    #[serde(default)]
    axis: Axes,
    #[serde(default)]
    order: IndexOrder,
    selection: Option<Vec<SelectedIndices>>,
    compression: Option<Compression>,
    filters: Option<Vec<RequestedFilter>>,
    missing: Option<MissingAttribute>,
    /// This option has no effect: the server caches nothing between requests, and only the operating system caches files.
    #[serde(rename = "option_disable_chunk_cache")]
    _option_disable_chunk_cache: Option<bool>,
    option_shape_as_bytes: Option<bool>,
    option_count_as_bytes: Option<bool>,
}

/// Protocol from which reductionist fetches data; Tidemill always reads from the cluster.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Interface {
    S3,
    Http,
    Https,
}

#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum ByteOrder {
    Big,
    #[default]
    Little,
}

#[derive(Debug, Default, PartialEq, Eq, Deserialize)]
enum IndexOrder {
    #[default]
    C,
    F,
}

#[derive(Debug, Default, Deserialize)]
#[serde(untagged)]
enum Axes {
    #[default]
    All,
    One(u32),
    Several(Vec<u32>),
}

/// Selected indices of one dimension: a list of three numbers, or a map with the three numbers.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct SelectedIndices {
    start: i64,
    end: i64,
    stride: i64,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "lowercase", tag = "id")]
enum Compression {
    Gzip,
    Zlib,
    Zstd,
    Blosc2,
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "snake_case", tag = "id")]
enum RequestedFilter {
    #[serde(alias = "shuffle_simd")]
    Shuffle {
        element_size: u64,
    },
    Fletcher32,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "snake_case")]
enum MissingAttribute {
    MissingValue(Number),
    MissingValues(Vec<Number>),
    ValidMin(Number),
    ValidMax(Number),
    ValidRange(Number, Number),
}

/// A reduction request after parsing.
#[derive(Debug)]
pub(super) struct ReductionRequest {
    pub(super) url: String,
    pub(super) spec: ArraySpec,
    pub(super) offset: u64,
    /// Length of the byte range; `None` for a range up to the end of the file.
    pub(super) size: Option<u64>,
    pub(super) shape_as_bytes: bool,
    pub(super) count_as_bytes: bool,
}

/// Returns the operation in a URL path, with or without a slash at the end of the path.
pub(super) fn operation(path: &str) -> Option<ArrayOperation> {
    let name = path.strip_prefix(super::PREFIX)?;
    Some(match name.strip_suffix('/').unwrap_or(name) {
        "count" => ArrayOperation::Count,
        "min" => ArrayOperation::Min,
        "max" => ArrayOperation::Max,
        "sum" => ArrayOperation::Sum,
        "select" => ArrayOperation::Select,
        _ => return None,
    })
}

impl ReductionRequest {
    pub(super) fn parse(operation: ArrayOperation, json: &[u8]) -> Result<Self, ReductionRefusal> {
        let body: Body = serde_json::from_slice(json)
            .map_err(|error| ReductionRefusal::Json(error.to_string()))?;
        let (Interface::S3 | Interface::Http | Interface::Https) = body.interface_type;
        let compression = body.compression.map(|compression| match compression {
            Compression::Gzip => Codec::Gzip,
            Compression::Zlib => Codec::Zlib,
            Compression::Zstd => Codec::Zstd,
            Compression::Blosc2 => Codec::Blosc2,
        });
        // The filters were applied in order before compression, so they are undone in the opposite order.
        let filters = body
            .filters
            .unwrap_or_default()
            .into_iter()
            .rev()
            .map(codec);
        let filters = filters.collect::<Result<Vec<_>, _>>()?;
        let spec = ArraySpec {
            operation,
            dtype: body.dtype,
            big_endian: body.byte_order == ByteOrder::Big,
            shape: body.shape,
            fortran: body.order == IndexOrder::F,
            axes: match body.axis {
                Axes::All => None,
                Axes::One(axis) => Some(vec![axis]),
                Axes::Several(axes) => Some(axes),
            },
            selection: body
                .selection
                .map(|slices| slices.iter().map(slice).collect()),
            codecs: compression.into_iter().chain(filters).collect(),
            missing: body.missing.map(missing),
        };
        let expected = ArrayPlan::new(&spec)?.raw_bytes();
        if let (true, Some(size), Some(expected)) = (spec.codecs.is_empty(), body.size, expected)
            && size != expected as u64
        {
            return Err(ReductionRefusal::Size { size, expected });
        }
        if body.size == Some(0) {
            return Err(ReductionRefusal::Empty);
        }
        Ok(Self {
            url: body.url,
            spec,
            offset: body.offset,
            size: body.size,
            shape_as_bytes: body.option_shape_as_bytes.unwrap_or(false),
            count_as_bytes: body.option_count_as_bytes.unwrap_or(false),
        })
    }
}

fn codec(filter: RequestedFilter) -> Result<Codec, ArrayError> {
    match filter {
        RequestedFilter::Shuffle { element_size } => {
            let size = u8::try_from(element_size).map_err(|_| ArrayError::ElementSize)?;
            Ok(Codec::Shuffle(size))
        }
        RequestedFilter::Fletcher32 => Ok(Codec::Fletcher32),
    }
}

fn slice(selected: &SelectedIndices) -> ArraySlice {
    ArraySlice {
        start: selected.start,
        end: selected.end,
        stride: selected.stride,
    }
}

fn missing(missing: MissingAttribute) -> Missing {
    match missing {
        MissingAttribute::MissingValue(value) => Missing::Values(vec![literal(&value)]),
        MissingAttribute::MissingValues(values) => {
            Missing::Values(values.iter().map(literal).collect())
        }
        MissingAttribute::ValidMin(least) => Missing::Outside(Some(literal(&least)), None),
        MissingAttribute::ValidMax(most) => Missing::Outside(None, Some(literal(&most))),
        MissingAttribute::ValidRange(least, most) => {
            Missing::Outside(Some(literal(&least)), Some(literal(&most)))
        }
    }
}

fn literal(number: &Number) -> Literal {
    if let Some(whole) = number.as_i64() {
        return Literal::Int(whole);
    }
    match number.as_u64() {
        Some(whole) => Literal::Uint(whole),
        None => Literal::Float(number.as_f64().unwrap_or(f64::NAN)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(more: &str) -> Result<ReductionRequest, ReductionRefusal> {
        let start = r#"{"interface_type": "https", "url": "https://h/files/a", "dtype": "int32""#;
        ReductionRequest::parse(ArrayOperation::Sum, format!("{start}{more}}}").as_bytes())
    }

    #[test]
    fn reduction_request_of_current_reductionist_clients_is_parsed() {
        let asked = parse(
            r#", "byte_order": "big", "offset": 8, "size": 100, "shape": [5, 10], "axis": [0, 1], "order": "F",
               "selection": [[0, 5, 1], [-1, 0, -2]], "compression": {"id": "zlib"},
               "filters": [{"id": "fletcher32"}, {"id": "shuffle", "element_size": 4}],
               "missing": {"valid_range": [-4, 9]}, "option_disable_chunk_cache": true, "option_count_as_bytes": true"#,
        )
        .unwrap();
        let codecs = [Codec::Zlib, Codec::Shuffle(4), Codec::Fletcher32];
        assert_eq!(asked.spec.codecs, codecs);
        assert_eq!(asked.spec.axes, Some(vec![0, 1]));
        assert_eq!((asked.offset, asked.size), (8, Some(100)));
        let ends = (Some(Literal::Int(-4)), Some(Literal::Int(9)));
        assert_eq!(asked.spec.missing, Some(Missing::Outside(ends.0, ends.1)));
        assert!(asked.spec.fortran && asked.spec.big_endian);
        assert!(asked.count_as_bytes && !asked.shape_as_bytes);
        assert_eq!(parse(r#", "axis": null"#).unwrap().spec.axes, None);
        let one = parse(
            r#", "axis": 1, "shape": [2, 3], "filters": [{"id": "shuffle_simd", "element_size": 4}]"#,
        );
        assert_eq!(one.unwrap().spec.axes, Some(vec![1]));
        for (path, name) in [
            ("/v2/sum", Some(ArrayOperation::Sum)),
            ("/v2/select/", Some(ArrayOperation::Select)),
            ("/v2/mean/", None),
        ] {
            assert_eq!(operation(path), name, "{path}");
        }
    }

    #[test]
    fn invalid_reduction_request_is_refused_with_reason() {
        for (more, words) in [
            (r#", "shapes": [3]"#, "unknown field `shapes`"),
            (r#", "size": 8, "shape": [3]"#, "12"),
            (r#", "size": 0"#, "size"),
            (r#", "axis": 0"#, "shape"),
            (r#", "shape": [3], "selection": [[0, 1, 0]]"#, "stride"),
            (r#", "shape": [3], "axis": 1"#, "axis 1"),
            (r#", "compression": {"id": "lzma"}"#, "lzma"),
            (r#", "compression": {"id": "blosc2"}"#, ""),
            (r#", "missing": {"missing_value": 1.5}"#, "1.5"),
            (r#", "missing": {"missing_value": NaN}"#, "expected value"),
            (r#", "missing": {"missing_value": null}"#, "JSON number"),
            (r#", "missing": {"valid_range": [4, 4]}"#, "below"),
            (
                r#", "filters": [{"id": "shuffle", "element_size": 999}]"#,
                "element_size",
            ),
            (r#", "offset": -1"#, "-1"),
            ("", ""),
        ] {
            match parse(more) {
                Ok(_) => assert!(words.is_empty(), "{more}"),
                Err(refused) => {
                    let reported = format!("{:?}", refused.body());
                    assert!(
                        !words.is_empty() && reported.contains(words),
                        "{more}: {reported}"
                    );
                }
            }
        }
        assert!(ReductionRequest::parse(ArrayOperation::Sum, b"{").is_err());
    }
}
