//! Tests series of files, selections, times and written results, with files that the tests create.

#![allow(
    clippy::unwrap_used,
    clippy::float_cmp,
    reason = "a test whose results are exact"
)]

use tidemill_compute::reduction::{
    Column, Coordinate, QueryText, ReductionInput, ResultAxis, ResultField, ResultFormat,
    ResultTable, local,
};
use tidemill_format::{Attribute, Header, Value, VariableSource};

fn text(name: &str, text: &str) -> Attribute {
    Attribute {
        name: name.into(),
        value: Value::Text(text.into()),
    }
}

fn axis(name: &str, values: &[f64], units: &str) -> ResultAxis {
    let attributes = match units {
        "" => Vec::new(),
        units => vec![text("units", units)],
    };
    ResultAxis {
        name: name.into(),
        length: values.len() as u64,
        coordinate: Some(Coordinate {
            values: values.to_vec(),
            attributes,
            bounds: None,
        }),
        labels: None,
    }
}

const DAYS: &str = "days since 2000-01-01";

fn times(values: &[f64]) -> ResultAxis {
    axis("time", values, DAYS)
}

fn with(mut axis: ResultAxis, attribute: Attribute) -> ResultAxis {
    let coordinate = axis.coordinate.as_mut().unwrap();
    coordinate
        .attributes
        .retain(|one| one.name != attribute.name);
    coordinate.attributes.push(attribute);
    axis
}

/// File with a variable `tas` that a test creates.
#[derive(Clone)]
struct Made {
    bytes: Vec<u8>,
}

fn made(axes: Vec<ResultAxis>, values: &[f64], attributes: Vec<Attribute>, single: bool) -> Made {
    let table = ResultTable {
        axes,
        fields: vec![ResultField {
            variable: "tas".into(),
            units: None,
            name: "mean".into(),
            values: Column::Real(values.iter().map(|value| Some(*value)).collect()),
            attributes,
            single,
        }],
        attributes: vec![text("title", "made"), text("history", "first\n")],
        notes: Vec::new(),
        scalars: Vec::new(),
    };
    let mut bytes = Vec::new();
    table.write(ResultFormat::Netcdf, &mut bytes).unwrap();
    Made { bytes }
}

fn simple(axes: Vec<ResultAxis>, values: &[f64]) -> Made {
    made(axes, values, Vec::new(), false)
}

fn header(made: &Made) -> Header {
    local::header("made", VariableSource::File(&made.bytes)).unwrap()
}

fn reduced(words: &QueryText<'_>, files: &[Made]) -> Result<ResultTable, String> {
    let words = QueryText {
        variable: "tas",
        ..words.clone()
    };
    let query = words.query().map_err(|error| error.to_string())?;
    let headers: Vec<Header> = files.iter().map(header).collect();
    let names: Vec<String> = (1..=files.len())
        .map(|number| format!("{number}.nc"))
        .collect();
    let inputs: Vec<ReductionInput<'_>> = (0..files.len())
        .map(|place| ReductionInput {
            name: &names[place],
            header: &headers[place],
            store: VariableSource::File(&files[place].bytes),
            bytes: Some(&files[place].bytes),
        })
        .collect();
    local::reduce(&query, &inputs, |_| {}).map_err(|error| error.to_string())
}

fn values(table: &ResultTable) -> Vec<f64> {
    match &table.fields[0].values {
        Column::Whole(all) => all
            .iter()
            .map(|one| f64::from(i32::try_from(one.unwrap()).unwrap()))
            .collect(),
        Column::Real(all) => all.iter().map(|one| one.unwrap()).collect(),
    }
}

fn coordinates(table: &ResultTable) -> &[f64] {
    &table.axes[0].coordinate.as_ref().unwrap().values
}

fn sum<'a>() -> QueryText<'a> {
    QueryText {
        operation: "sum",
        ..QueryText::default()
    }
}

fn refused(words: &QueryText<'_>, files: &[Made], why: &[&str]) {
    let error = reduced(words, files).expect_err("it is refused");
    for word in why {
        assert!(error.contains(word), "{word}: {error}");
    }
}

#[test]
fn files_with_other_coordinates_are_refused_by_name() {
    let lat = |values: &[f64]| axis("lat", values, "degrees_north");
    let north = simple(
        vec![times(&[0.0]), lat(&[60.0, 20.0, -20.0])],
        &[1.0, 2.0, 3.0],
    );
    let of = |lat: ResultAxis| simple(vec![times(&[1.0]), lat], &[3.0, 2.0, 1.0]);
    let south = of(lat(&[-20.0, 20.0, 60.0]));
    refused(
        &sum(),
        &[north.clone(), south],
        &["2.nc and 1.nc", "coordinate lat", "other way around"],
    );
    let moved = of(lat(&[60.0, 21.0, -20.0]));
    refused(
        &sum(),
        &[north.clone(), moved.clone()],
        &["coordinate lat", "index 1 is 20"],
    );
    let of_first = QueryText {
        join: "override",
        select: "lat=20",
        ..sum()
    };
    assert_eq!(
        values(&reduced(&of_first, &[north.clone(), moved]).unwrap()),
        [4.0]
    );
    let other = of(axis("lat", &[60.0, 20.0, -20.0], "m"));
    refused(
        &sum(),
        &[north.clone(), other],
        &["coordinate lat", "its units are \"degrees_north\""],
    );
    let spelt = of(axis(
        "lat",
        &[60.0, 20.0, -20.000_000_000_000_004],
        "degrees_N",
    ));
    assert_eq!(
        values(&reduced(&sum(), &[north.clone(), spelt]).unwrap()),
        [12.0]
    );
    let none = of(ResultAxis {
        coordinate: None,
        ..lat(&[0.0; 3])
    });
    refused(
        &sum(),
        &[north, none],
        &["coordinate lat", "the former has none"],
    );
}

#[test]
fn index_without_time_is_left_out_whatever_its_bounds() {
    let mut axis = times(&[f64::NAN, 1.5]);
    axis.coordinate.as_mut().unwrap().bounds = Some(vec![(0.0, 1.0), (1.0, 2.0)]);
    let file = simple(vec![axis], &[1.0, 2.0]);
    for time_at in ["bounds", "start"] {
        let words = QueryText {
            select: "time=2000",
            time_at,
            ..sum()
        };
        let found = reduced(&words, std::slice::from_ref(&file)).unwrap();
        assert_eq!(values(&found), [2.0], "{time_at}");
        assert!(
            found
                .notes
                .iter()
                .any(|note| note.contains("1 indices of time")),
            "{:?}",
            found.notes
        );
    }
}

fn inner<'a>() -> QueryText<'a> {
    QueryText {
        join: "inner",
        ..sum()
    }
}

/// Returns files of one day each, whose values are the sum of latitude and day.
fn of_latitudes() -> [Made; 3] {
    let lat = |values: &[f64]| axis("lat", values, "degrees_north");
    let of = |time: f64, lats: &[f64]| {
        let values: Vec<f64> = lats.iter().map(|one| one + time).collect();
        simple(vec![times(&[time]), lat(lats)], &values)
    };
    [
        of(0.0, &[60.0, 40.0, 20.0, 0.0, -20.0]),
        of(
            1.0,
            &[-40.0, -20.0, 0.0, 20.000_000_000_000_004, 50.0, 60.0],
        ),
        of(2.0, &[60.0, 20.0, 0.0, -20.0]),
    ]
}

#[test]
fn inner_join_keeps_common_values_in_order_of_first_file() {
    let files = of_latitudes();
    let kept = QueryText {
        over: "time",
        ..inner()
    };
    let found = reduced(&kept, &files).unwrap();
    assert_eq!(coordinates(&found), [60.0, 20.0, 0.0, -20.0]);
    let close = |one: &f64, two: f64| (one - two).abs() < 1e-9;
    let expected = [183.0, 63.0, 3.0, -57.0];
    assert!(
        values(&found)
            .iter()
            .zip(expected)
            .all(|(one, two)| close(one, two))
    );
    // The result is the same for any other order of the files.
    let [one, two, three] = files.clone();
    let found = reduced(&kept, &[two, three, one]).unwrap();
    assert_eq!(coordinates(&found).len(), 4);
    assert!(
        close(&coordinates(&found)[0], -20.0),
        "{:?}",
        coordinates(&found)
    );
    // Selections, steps and indices refer to the common part of all files.
    for (select, expected) in [
        ("lat=[1:3]", 66.0),
        ("lat=[-1]", -57.0),
        ("lat=0:30", 66.0),
        ("lat=::2", 186.0),
        ("lat=20,time=2000-01-02", 21.0),
    ] {
        let words = QueryText { select, ..inner() };
        let found = values(&reduced(&words, &files).unwrap());
        assert!(close(&found[0], expected), "{select}: {found:?}");
    }
    let outside = QueryText {
        select: "lat=[2:5]",
        ..inner()
    };
    refused(&outside, &files, &["dimension lat", "it has 4"]);
}

#[test]
fn inner_join_weights_cover_common_values_only() {
    let close = |one: &f64, two: f64| (one - two).abs() < 1e-9;
    let files = of_latitudes();
    let weighted = QueryText {
        operation: "mean",
        weights: "lat",
        ..inner()
    };
    let cosine = |lat: f64| lat.to_radians().cos();
    let lats = [60.0, 20.0, 0.0, -20.0];
    let weights: f64 = lats.into_iter().map(cosine).sum();
    let mean = lats
        .into_iter()
        .map(|lat| (lat + 1.0) * cosine(lat))
        .sum::<f64>()
        / weights;
    let found = values(&reduced(&weighted, &files).unwrap());
    assert!(close(&found[0], mean), "{found:?} {mean}");
}

#[test]
fn inner_join_without_common_value_is_refused() {
    let lat = |values: &[f64]| axis("lat", values, "degrees_north");
    let of = |time: f64, lats: ResultAxis| {
        let values = vec![1.0; usize::try_from(lats.length).unwrap()];
        simple(vec![times(&[time]), lats], &values)
    };
    let one = of(0.0, lat(&[0.0, 1.0]));
    let other = of(1.0, lat(&[0.5, 1.5, 2.5]));
    refused(
        &inner(),
        &[one.clone(), other],
        &[
            "2.nc and 1.nc",
            "coordinate lat",
            "no value is in all files",
        ],
    );
    let twice = of(1.0, lat(&[0.0, 1.0, 1.0]));
    refused(
        &inner(),
        &[one.clone(), twice],
        &["coordinate lat", "1 is twice"],
    );
    let metres = of(1.0, axis("lat", &[0.0, 1.0, 2.0], "m"));
    refused(
        &inner(),
        &[one.clone(), metres],
        &["coordinate lat", "its units"],
    );
    let none = |length: u64| ResultAxis {
        coordinate: None,
        length,
        ..lat(&[])
    };
    refused(
        &inner(),
        &[one.clone(), of(1.0, none(3))],
        &["coordinate lat", "has none"],
    );
    refused(
        &inner(),
        &[of(0.0, none(2)), of(1.0, none(3))],
        &["coordinate lat", "another length"],
    );
    assert_eq!(
        values(&reduced(&inner(), &[of(0.0, none(2)), of(1.0, none(2))]).unwrap()),
        [4.0]
    );
    // NaN is no common value of two files.
    let nan = |time| of(time, lat(&[f64::NAN, 1.0]));
    assert_eq!(
        values(&reduced(&inner(), &[nan(0.0), nan(1.0)]).unwrap()),
        [2.0]
    );
}

#[test]
fn inner_join_of_members_keeps_common_times() {
    let ensemble = QueryText {
        ensemble: "yes",
        ..inner()
    };
    let members = [
        simple(vec![times(&[0.0, 1.0, 2.0])], &[1.0, 2.0, 4.0]),
        simple(
            vec![with(
                times(&[1.0, 0.0, -1.0]),
                text("units", "days since 2000-01-02"),
            )],
            &[8.0, 16.0, 32.0],
        ),
    ];
    assert_eq!(
        values(&reduced(&ensemble, &members).unwrap()),
        [1.0 + 2.0 + 4.0 + 8.0 + 16.0 + 32.0]
    );
    let members = [
        simple(vec![times(&[0.0, 1.0])], &[1.0, 2.0]),
        simple(vec![times(&[1.0, 2.0, 3.0])], &[4.0, 8.0, 16.0]),
    ];
    assert_eq!(values(&reduced(&ensemble, &members).unwrap()), [2.0 + 4.0]);
}

#[test]
fn first_file_of_series_gives_coordinates_of_result() {
    let lon: Vec<f64> = (0..36).map(|place| f64::from(place) * 10.0).collect();
    let of =
        |time: f64, axis: ResultAxis, values: &[f64]| simple(vec![times(&[time]), axis], values);
    let around = |time| of(time, axis("lon", &lon, "degrees_east"), &lon);
    let words = QueryText {
        select: "time=2000-01-02,lon=-10:10",
        over: "time",
        ..sum()
    };
    let table = reduced(&words, &[around(0.0), around(1.0)]).unwrap();
    assert_eq!(values(&table), [350.0, 0.0, 10.0]);
    assert_eq!(coordinates(&table), [-10.0, 0.0, 10.0]);
    // The first file in time counts, not the first that was named.
    let lat = |time, middle| {
        let lat = axis("lat", &[60.0, middle, -20.0], "degrees_north");
        of(time, lat, &[1.0, 2.0, 4.0])
    };
    for select in ["time=2000-01-02,lat=0..60", "time=2000-01-02,lat=21..60"] {
        let words = QueryText {
            join: "override",
            select,
            ..words.clone()
        };
        let table = reduced(&words, &[lat(1.0, 20.0), lat(0.0, 21.0)]).unwrap();
        assert_eq!(values(&table), [1.0, 2.0], "{select}");
        assert_eq!(coordinates(&table), [60.0, 21.0], "{select}");
    }
}

#[test]
fn times_of_series_have_one_calendar_and_no_duplicates() {
    let first = simple(vec![times(&[0.0, 1.0])], &[1.0, 2.0]);
    let noleap = with(times(&[2.0]), text("calendar", "noleap"));
    refused(
        &sum(),
        &[first.clone(), simple(vec![noleap], &[4.0])],
        &["coordinate time", "calendar"],
    );
    let again = simple(
        vec![axis("time", &[24.0, 48.0], "hours since 2000-01-01")],
        &[4.0, 8.0],
    );
    refused(
        &sum(),
        &[first.clone(), again],
        &["both have 2000-01-02", "--ensemble"],
    );
    // From 1582 on these two calendars are the same.
    let other = axis("time", &[72.0, 96.0], "hours since 1999-12-31");
    let other = with(other, text("calendar", "proleptic_gregorian"));
    let kept = QueryText {
        over: "lat",
        ..sum()
    };
    let lat = || axis("lat", &[0.0], "");
    let files = [
        simple(vec![other, lat()], &[4.0, 8.0]),
        simple(vec![times(&[0.0, 1.0]), lat()], &[1.0, 2.0]),
    ];
    let table = reduced(&kept, &files).unwrap();
    assert_eq!(values(&table), [1.0, 2.0, 4.0, 8.0]);
    assert_eq!(coordinates(&table), [0.0, 1.0, 2.0, 3.0]);
    // Interleaved files have no order.
    let between = [
        simple(vec![times(&[0.0, 2.0]), lat()], &[1.0, 2.0]),
        simple(vec![times(&[1.0, 3.0]), lat()], &[1.0, 2.0]),
    ];
    refused(&kept, &between, &["coordinate time", "are interleaved"]);
    assert_eq!(values(&reduced(&sum(), &between).unwrap()), [6.0]);
    let missing = || simple(vec![times(&[f64::NAN]), lat()], &[1.0]);
    let files = [missing(), between[1].clone()];
    refused(
        &kept,
        &files,
        &["coordinate time", "no value for it at all"],
    );
    assert_eq!(values(&reduced(&sum(), &files).unwrap()), [4.0]);
    let units = |units| {
        made(
            vec![times(&[5.0])],
            &[1.0],
            vec![text("units", units)],
            false,
        )
    };
    let kelvin = made(vec![times(&[0.0])], &[1.0], vec![text("units", "K")], false);
    refused(
        &sum(),
        &[kelvin, units("degC")],
        &["the units of tas are \"K\""],
    );
}

#[test]
fn members_of_ensemble_have_same_times() {
    let member = |first: f64| simple(vec![times(&[0.0, 1.0])], &[first, first + 1.0]);
    let words = QueryText {
        operation: "mean",
        ensemble: "yes",
        over: "member",
        ..QueryText::default()
    };
    let table = reduced(&words, &[member(0.0), member(10.0), member(20.0)]).unwrap();
    assert_eq!(values(&table), [10.0, 11.0]);
    let over_time = QueryText {
        over: "time",
        ..words.clone()
    };
    refused(
        &over_time,
        &[member(0.0), member(1.0)],
        &["name member among the dimensions"],
    );
    let later = simple(vec![times(&[1.0, 2.0])], &[0.0, 0.0]);
    refused(
        &words,
        &[member(0.0), later],
        &["coordinate time", "2000-01-01"],
    );
}

#[test]
fn longitude_selection_wraps_around() {
    let lon: Vec<f64> = (0..36).map(|place| f64::from(place) * 10.0).collect();
    let of = |values: &[f64]| {
        simple(
            vec![axis("lat", &[0.0], ""), axis("lon", values, "degrees_east")],
            values,
        )
    };
    let kept = |select| QueryText {
        select,
        over: "lat",
        ..sum()
    };
    let around = reduced(&kept("lon=-20:20"), &[of(&lon)]).unwrap();
    assert_eq!(values(&around), [340.0, 350.0, 0.0, 10.0, 20.0]);
    assert_eq!(coordinates(&around), [-20.0, -10.0, 0.0, 10.0, 20.0]);
    assert!(around.notes.is_empty(), "{:?}", around.notes);
    let other = reduced(&kept("lon=350:10"), &[of(&lon)]).unwrap();
    assert_eq!(values(&other), [350.0, 0.0, 10.0]);
    let stepped = reduced(&kept("lon=-20:20::2"), &[of(&lon)]).unwrap();
    assert_eq!(coordinates(&stepped), [-20.0, 0.0, 20.0]);
    let all = reduced(&kept("lon=-180:179"), &[of(&lon)]).unwrap();
    assert_eq!(coordinates(&all).len(), 36);
    let west: Vec<f64> = lon.iter().map(|value| value - 180.0).collect();
    let dateline = reduced(&kept("lon=170:190"), &[of(&west)]).unwrap();
    assert_eq!(coordinates(&dateline), [170.0, 180.0, 190.0]);
    let down: Vec<f64> = lon.iter().rev().copied().collect();
    let down = reduced(&kept("lon=-10:10"), &[of(&down)]).unwrap();
    assert_eq!(coordinates(&down), [10.0, 0.0, -10.0]);
    // A closed grid contains one longitude twice.
    let closed: Vec<f64> = (0..=36).map(|place| f64::from(place) * 10.0).collect();
    refused(&kept("lon=-10:10"), &[of(&closed)], &["one longitude"]);
    // A dimension that is no longitude is not periodic.
    let level = simple(vec![axis("lev", &lon, "m")], &lon);
    let words = QueryText {
        select: "lev=350:10",
        ..sum()
    };
    refused(&words, &[level], &["350 is above 10"]);
}

#[test]
fn selection_ends_are_converted_to_type_of_coordinate() {
    let tenths: Vec<f64> = (1..=5_u8)
        .map(|place| f64::from(f32::from(place) / 10.0))
        .collect();
    let mut file = simple(vec![axis("lat", &tenths, "")], &[1.0, 2.0, 4.0, 8.0, 16.0]);
    // The coordinate as 32-bit floats: written from a table that has it as its variable.
    let table = ResultTable {
        axes: vec![ResultAxis {
            coordinate: None,
            ..axis("lat", &tenths, "")
        }],
        fields: ["lat", "tas"]
            .map(|variable| ResultField {
                variable: variable.into(),
                units: None,
                name: "mean".into(),
                values: Column::Real(match variable {
                    "lat" => tenths.iter().copied().map(Some).collect(),
                    _ => [1.0, 2.0, 4.0, 8.0, 16.0].map(Some).to_vec(),
                }),
                attributes: Vec::new(),
                single: variable == "lat",
            })
            .into(),
        attributes: Vec::new(),
        notes: Vec::new(),
        scalars: Vec::new(),
    };
    file.bytes.clear();
    table.write(ResultFormat::Netcdf, &mut file.bytes).unwrap();
    for (select, expected) in [
        ("lat=0.1:0.3", 7.0),
        ("lat=0.3", 4.0),
        ("lat=0.2:0.5", 30.0),
    ] {
        let words = QueryText { select, ..sum() };
        let table = reduced(&words, std::slice::from_ref(&file)).unwrap();
        assert_eq!(values(&table), [expected], "{select}");
        assert!(table.notes.is_empty());
    }
}

#[test]
fn selection_outside_data_is_refused_or_noted() {
    let file = simple(
        vec![times(&[0.0, f64::NAN, 2.0, 3.0])],
        &[1.0, 2.0, 4.0, 8.0],
    );
    let of = |select| QueryText { select, ..sum() };
    let table = reduced(&of("time=2000"), std::slice::from_ref(&file)).unwrap();
    assert_eq!(values(&table), [13.0]);
    assert!(
        table.notes[0].contains("1 indices of time have no"),
        "{:?}",
        table.notes
    );
    assert!(
        table.notes[1].contains("beyond the data"),
        "{:?}",
        table.notes
    );
    let table = reduced(
        &of("time=2000-01-03..2000-01-04"),
        std::slice::from_ref(&file),
    )
    .unwrap();
    assert_eq!((values(&table), table.notes.len()), (vec![12.0], 1));
    let by = QueryText { by: "day", ..sum() };
    let table = reduced(&by, std::slice::from_ref(&file)).unwrap();
    assert_eq!(
        (values(&table), table.notes.len()),
        (vec![1.0, 4.0, 8.0], 1)
    );
    refused(&of("time=2001"), &[file], &["nothing of it is selected"]);
    let none = simple(vec![times(&[f64::NAN; 2])], &[1.0, 2.0]);
    refused(&by, &[none], &["no index of time has a time"]);
}

#[test]
fn unreduced_time_dimension_needs_no_known_units() {
    for units in ["fortnights since 2000-01-01", "days since the flood"] {
        let of = |time: f64| {
            let axes = vec![axis("time", &[time], units), axis("lat", &[0.0, 1.0], "")];
            simple(axes, &[time, 1.0])
        };
        let kept = QueryText {
            over: "lat",
            ..sum()
        };
        let table = reduced(&kept, &[of(2.0), of(1.0)]).unwrap();
        assert_eq!(values(&table), [2.0, 3.0], "{units}");
        let by = QueryText {
            by: "month",
            ..sum()
        };
        refused(&by, &[of(1.0)], &["dimension time"]);
    }
}

#[test]
fn reduction_groups_months_in_all_calendars() {
    for calendar in [
        "standard",
        "gregorian",
        "proleptic_gregorian",
        "julian",
        "noleap",
        "365_day",
        "all_leap",
        "366_day",
        "360_day",
    ] {
        let time = axis("time", &[0.0, 1.0, 2.5], "months since 2000-01-01");
        let file = simple(
            vec![with(time, text("calendar", calendar))],
            &[1.0, 2.0, 4.0],
        );
        let by = QueryText {
            by: "month",
            ..sum()
        };
        let table = reduced(&by, &[file]).unwrap();
        assert_eq!(values(&table), [1.0, 2.0, 4.0], "{calendar}");
        assert_eq!(coordinates(&table), [0.5, 1.5, 2.5], "{calendar}");
    }
}

/// Returns a file of monthly means whose time stamp is the end of the month.
fn monthly() -> Made {
    let mut time = times(&[31.0, 60.0, 91.0]);
    let bounds = vec![(0.0, 31.0), (31.0, 60.0), (60.0, 91.0)];
    time.coordinate.as_mut().unwrap().bounds = Some(bounds);
    simple(vec![time], &[1.0, 2.0, 4.0])
}

#[test]
fn time_stamps_at_ends_of_intervals_require_time_at() {
    let by = |time_at, by| QueryText {
        by,
        time_at,
        ..sum()
    };
    refused(
        &by("", "month"),
        &[monthly()],
        &["dimension time", "--time-at", "2000-02-01 for 2000-01-01"],
    );
    for at in ["end", "bounds"] {
        let table = reduced(&by(at, "month"), &[monthly()]).unwrap();
        assert_eq!(table.axes[0].labels.as_ref().unwrap()[0], "2000-01", "{at}");
        assert_eq!(coordinates(&table), [15.5, 45.5, 75.5]);
    }
    let table = reduced(&by("start", "month"), &[monthly()]).unwrap();
    assert_eq!(table.axes[0].labels.as_ref().unwrap()[0], "2000-02");
    assert_eq!(
        values(&reduced(&by("", "year"), &[monthly()]).unwrap()),
        [7.0]
    );
    let select = |time_at| QueryText {
        select: "time=2000-01",
        time_at,
        ..sum()
    };
    refused(&select(""), &[monthly()], &["--time-at"]);
    assert_eq!(
        values(&reduced(&select("bounds"), &[monthly()]).unwrap()),
        [1.0]
    );
    let none = simple(vec![times(&[0.0])], &[1.0]);
    refused(&by("bounds", "month"), &[none], &["no bounds"]);
}

#[test]
fn reduction_results_are_written_with_cf_attributes() {
    let days: Vec<f64> = (0..60).map(|day| f64::from(day) + 0.5).collect();
    let attributes = vec![
        text("standard_name", "air_temperature"),
        text("units", "K"),
        text("cell_methods", "area: mean"),
        text("coordinates", "height"),
    ];
    let file = made(vec![times(&days)], &days, attributes, true);
    let words = QueryText {
        operation: "max",
        by: "month",
        ..QueryText::default()
    };
    let mut table = reduced(&words, &[file]).unwrap();
    table.log("tidemill reduce");
    let mut written = Made { bytes: Vec::new() };
    table
        .write(ResultFormat::Netcdf, &mut written.bytes)
        .unwrap();
    let header = header(&written);
    let tas = header.find("tas").unwrap();
    assert_eq!(tas.data_type.name(), "float32");
    assert_eq!(tas.text("units"), Some("K"));
    assert_eq!(tas.text("standard_name"), Some("air_temperature"));
    assert_eq!(
        tas.text("cell_methods"),
        Some("area: mean time: maximum (interval: 1 day)")
    );
    assert_eq!(tas.text("coordinates"), None);
    let global = |name: &str| {
        let found = header.attributes.iter().find(|one| one.name == name);
        found.map(|one| one.value.clone())
    };
    assert_eq!(global("title"), Some(Value::Text("made".into())));
    assert_eq!(
        global("history"),
        Some(Value::Text("first\ntidemill reduce".into()))
    );
    assert_eq!(global("Conventions"), Some(Value::Text("CF-1.8".into())));
    let time = header.find("time").unwrap();
    assert_eq!(time.text("bounds"), Some("time_bnds"));
    assert_eq!(coordinates(&table), [15.5, 45.5]);
    assert_eq!(header.find("time_bnds").unwrap().shape(), [2, 2]);
    let bounds = table.axes[0].coordinate.as_ref().unwrap().bounds.clone();
    assert_eq!(bounds, Some(vec![(0.0, 31.0), (31.0, 60.0)]));
    let again = QueryText {
        operation: "count",
        ..QueryText::default()
    };
    let mut csv = Vec::new();
    let table = reduced(&again, &[written.clone()]).unwrap();
    assert_eq!(
        table.fields[0].attributes,
        [text("long_name", "number of values of tas")]
    );
    let kept = QueryText {
        over: "lat",
        ..sum()
    };
    let lat = axis("lat", &[0.0], "");
    let times = times(&[0.0, 1.25]);
    let table = reduced(&kept, &[simple(vec![times, lat], &[1.0, 2.0])]).unwrap();
    table.write(ResultFormat::Csv, &mut csv).unwrap();
    let csv = String::from_utf8(csv).unwrap();
    assert_eq!(csv, "time,sum\n2000-01-01,1.0\n2000-01-02T06:00:00,2.0\n");
}

#[test]
fn cell_methods_name_dimensions_as_cf_does() {
    let lat = || axis("lat", &[10.0, 20.0], "degrees_north");
    let axes = || vec![times(&[0.0, 1.0]), lat(), axis("lev", &[1.0], "m")];
    let methods = |words: &QueryText<'_>, files: &[Made]| {
        let table = reduced(words, files).unwrap();
        let all = table.fields[0].attributes.clone();
        let found = all.into_iter().find(|one| one.name == "cell_methods");
        match found.unwrap().value {
            Value::Text(text) => text,
            other => panic!("{other:?}"),
        }
    };
    let file = simple(axes(), &[1.0; 4]);
    let over = |over| QueryText { over, ..sum() };
    for (words, expected) in [
        (over("lat,lev"), "latitude: lev: sum"),
        (over(""), "time: latitude: lev: sum"),
        (
            QueryText {
                weights: "lat",
                ..over("time")
            },
            "time: sum (interval: 1 day comment: weighted by the cosine of lat)",
        ),
        (
            QueryText {
                by: "climatological-month",
                ..over("lat")
            },
            "time: latitude: sum",
        ),
        (
            QueryText {
                weights: "lat",
                ..over("lat,lev")
            },
            "latitude: lev: sum (weighted by the cosine of lat)",
        ),
    ] {
        let files = std::slice::from_ref(&file);
        assert_eq!(methods(&words, files), expected, "{words:?}");
    }
    // With or without values of the coordinate.
    let none = axis("lat", &[f64::NAN; 2], "degrees_north");
    let none = simple(vec![times(&[0.0]), none], &[1.0; 2]);
    assert_eq!(methods(&over("lat"), &[none]), "latitude: sum");
    let members = QueryText {
        ensemble: "yes",
        ..over("member")
    };
    assert_eq!(methods(&members, &[file.clone(), file]), "realization: sum");
}

#[test]
fn bounds_of_kept_dimensions_are_written() {
    let with_bounds = |mut axis: ResultAxis, bounds: &[(f64, f64)]| {
        axis.coordinate.as_mut().unwrap().bounds = Some(bounds.to_vec());
        axis
    };
    let lat = || {
        let lat = axis("lat", &[20.0, 10.0], "degrees_north");
        with_bounds(lat, &[(25.0, 15.0), (15.0, 5.0)])
    };
    let of = |day: f64, units| {
        let time = axis("time", &[day], units);
        let ends = if units == DAYS { 1.0 } else { 24.0 };
        simple(
            vec![with_bounds(time, &[(day, day + ends)]), lat()],
            &[1.0, 2.0],
        )
    };
    let files = [of(0.0, DAYS), of(24.0, "hours since 2000-01-01")];
    let bounds = |over, select| {
        let words = QueryText {
            over,
            select,
            ..sum()
        };
        let table = reduced(&words, &files).unwrap();
        table.axes[0].coordinate.as_ref().unwrap().bounds.clone()
    };
    assert_eq!(bounds("lat", ""), Some(vec![(0.0, 1.0), (1.0, 2.0)]));
    assert_eq!(bounds("time", "lat=5:15"), Some(vec![(15.0, 5.0)]));
    // Reduced dimensions are written as one value: their middle.
    let over_time = QueryText {
        over: "time",
        ..sum()
    };
    let table = reduced(&over_time, &files).unwrap();
    assert_eq!(table.scalars[0].ends, (0.0, 2.0));
    let mut written = Made { bytes: Vec::new() };
    table
        .write(ResultFormat::Netcdf, &mut written.bytes)
        .unwrap();
    let header = header(&written);
    let time = header.find("time").unwrap();
    assert_eq!((time.shape(), time.text("units")), (Vec::new(), Some(DAYS)));
    assert_eq!(time.text("bounds"), None);
    assert_eq!(
        header.find("tas").unwrap().text("coordinates"),
        Some("time")
    );
    // If only some files have bounds, the result has none.
    let none = simple(vec![times(&[2.0]), lat()], &[1.0, 2.0]);
    let kept = QueryText {
        over: "lat",
        ..sum()
    };
    let table = reduced(&kept, &[files[0].clone(), none]).unwrap();
    assert_eq!(table.axes[0].coordinate.as_ref().unwrap().bounds, None);
}
