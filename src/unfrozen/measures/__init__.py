"""What training was worth: panels, success with intervals, the collapse verdict, diversity, distributions."""
