// Placeholder: the lead overwrites this file with the bindings of the native core.
#include <nanobind/nanobind.h>

NB_MODULE(_native, module) { module.attr("placeholder") = true; }
