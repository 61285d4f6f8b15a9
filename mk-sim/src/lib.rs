//! Runs any proved program on the CPU: values, time, faults, races, deadlocks.
