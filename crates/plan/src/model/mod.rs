//! The equations of Active Flash: staging, feasibility, energy and cost of analysis on storage devices.
